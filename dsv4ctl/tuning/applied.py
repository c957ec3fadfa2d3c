"""What `tune-timeout --apply` has changed, kept beside the stack's record so that it can be undone."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from dsv4ctl.errors import CannotLook
from dsv4ctl.profile.rewriting import Change

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place

_FILE = "timeouts.json"
KEPT = 20
"""So many changes are remembered."""


@dataclass(frozen=True)
class Applied:
    """One change: when (UTC), to what, what each prefill worker had before, what was planned for it (None: nothing),
    and what was changed in which file."""

    at: str
    timeout_s: float
    before_s: Mapping[str, float]
    planned: Mapping[str, str | None]
    profile: str | None = None
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class _Document:
    version: Literal[1]
    body: tuple[Applied, ...]


class AppliedStore:
    """The changes of one stack, the oldest first, on the host of its entry."""

    def __init__(self, place: "Place", stack: str) -> None:
        self._host = place.host
        self._path = posixpath.join(place.store.directory(stack), _FILE)

    def load(self) -> tuple[Applied, ...]:
        """All that are remembered.

        Raises:
            CannotLook: there is something that cannot be understood.
            HostUnreachable
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            raw = self._host.read(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        try:
            return TypeAdapter(_Document).validate_json(raw, strict=True).body
        except ValidationError as error:
            raise CannotLook(
                f"{self._path} on {self._host.name} is no list of changes of ours",
                why=str(error).splitlines()[0],
                hint="move it away; what was changed before cannot be undone then",
            ) from error

    def save(self, changes: tuple[Applied, ...]) -> None:
        """Remember these, atomically.

        Raises:
            OperationFailed, HostUnreachable
        """
        document = asdict(_Document(1, changes[-KEPT:]))
        self._host.write(self._path, json.dumps(document, indent=1).encode(), mode=0o600)
