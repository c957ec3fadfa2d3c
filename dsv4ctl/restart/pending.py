"""A restart that is under way, or was cut off: kept on the entry's host until it has proven itself.

STATE/stacks/NAME/restart.json    what is being done, and how far it has come
STATE/stacks/NAME/before.json     on each host: what its engines were started with, secrets and all, for the way back

Both are readable for their owner alone, and are removed at the end.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from dsv4ctl.errors import CannotLook
from dsv4ctl.fleet import Place
from dsv4ctl.restart.router import Registered
from dsv4ctl.state import RESTART_FILES
from dsv4ctl.supervisors.base import UnitHandle

if TYPE_CHECKING:
    from dsv4ctl.stack import Worker

T = TypeVar("T")

Phase = Literal["serving", "cordoned", "ending", "down", "starting", "proving", "rolling back"]
"""How far it has come: nothing was stopped; nothing new is let in; engines were told to end; all are gone; new ones are
being started; they answer and are being proven; the old configuration is being started again."""

RESTART_VERSION = 1
_RESTART, _BEFORE = RESTART_FILES


@dataclass(frozen=True)
class Pending:
    """A restart. `began_at` is the wall clock, for people. `engines` are those that are restarted, `leaving` the units
    that were there before. `sets` and `before_sets` as they are stored, secrets as fingerprints. `router` are the
    workers that were taken out of it and have to be put in again; `evidence` is by host."""

    stack: str
    began_at: str
    phase: Phase
    step: str
    engines: tuple[str, ...]
    leaving: tuple[UnitHandle, ...]
    sets: tuple[str, ...]
    before_sets: tuple[str, ...]
    router: tuple[Registered, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """What an engine was started with, for the way back. It holds secrets."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    listen: str
    port: int
    ports: Mapping[str, int]


class PendingStore:
    """Reads and writes what is under way."""

    def __init__(self, place: Place, stack: str) -> None:
        self._host = place.host
        self._folder = place.store.directory(stack)
        self._stack = stack

    def load(self) -> Pending | None:
        """What was begun and has not ended; None where nothing was.

        Raises:
            CannotLook: there is something that cannot be understood.
            HostUnreachable
        """
        path = self._path(_RESTART)
        body = self._read(path)
        if body is None:
            return None
        return _parsed(Pending, body, path, self._host.name)

    def save(self, pending: Pending) -> None:
        """Write it down, atomically.

        Raises:
            OperationFailed, HostUnreachable
        """
        self._write(self._path(_RESTART), asdict(pending))

    def load_before(self) -> tuple[Started, ...]:
        """What this host's engines were started with before; empty where that is not known.

        Raises: as `load`.
        """
        path = self._path(_BEFORE)
        body = self._read(path)
        if body is None:
            return ()
        return _parsed(tuple[Started, ...], body, path, self._host.name)

    def left_over(self) -> str | None:
        """The path of what this host's engines were started with, where it is kept; None where nothing is.

        Raises:
            HostUnreachable, DeadlineExceeded
        """
        path = self._path(_BEFORE)
        return path if self._host.run(["test", "-e", path], deadline_s=10.0, check=False).returncode == 0 else None

    def save_before(self, workers: "Sequence[Worker]") -> None:
        """Keep what these engines can be started with again.

        Raises: as `save`.
        """
        started = [
            asdict(Started(worker.name, worker.argv, dict(worker.env), worker.listen, worker.port, dict(worker.ports)))
            for worker in workers
        ]
        self._write(self._path(_BEFORE), started)

    def delete(self) -> None:
        """It is over: nothing of it is kept."""
        paths = [self._path(_RESTART), self._path(_BEFORE)]
        self._host.run(["rm", "-f", "--", *paths], deadline_s=10.0)

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, name)

    def _read(self, path: str) -> object:
        try:
            raw = self._host.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            document = json.loads(raw)
            version, body = document["version"], document["body"]
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(path, self._host.name, str(error)) from error
        if version != RESTART_VERSION:
            raise _unreadable(path, self._host.name, f"this dsv4ctl reads version {RESTART_VERSION}, not {version}")
        return body

    def _write(self, path: str, body: object) -> None:
        self._host.write(path, json.dumps({"version": RESTART_VERSION, "body": body}, indent=1).encode(), mode=0o600)


def state_of(pending: Pending) -> str:
    """How far it has come, as a part of a sentence."""
    names = ", ".join(pending.engines)
    return {
        "serving": "nothing was ended",
        "cordoned": f"nothing was ended, and {names} are out of the router",
        "ending": f"{names} are being ended",
        "down": f"{names} are ended, and out of the router",
        "starting": f"{names} are being started, and out of the router",
        "proving": f"{names} run and are not proven yet",
        "rolling back": f"{names} are being started as they were before",
    }[pending.phase]


def _parsed(kind: type[T], body: object, path: str, host: str) -> T:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        raise _unreadable(path, host, str(error).splitlines()[0]) from error


def _unreadable(path: str, host: str, why: str) -> CannotLook:
    return CannotLook(
        f"{path} on {host} is no restart of ours",
        why=why,
        hint="move it away; `dsv4ctl status` says what runs",
    )
