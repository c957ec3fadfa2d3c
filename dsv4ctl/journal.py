"""The journal of one act: JSON lines in the state directory of the host, written before and after every step."""

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from dsv4ctl.errors import Dsv4Error, OperationFailed
from dsv4ctl.hosts.base import again_if_lost

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host


def utc_now() -> datetime:
    """The wall clock, for people who read a journal. Ages and deadlines use a monotonic clock instead."""
    return datetime.now(UTC)


class NotWritten(OperationFailed):
    """What is being done, or how far it has come, cannot be written down: no fault of what it is done to (exit 1)."""


class Journal:
    """Appends lines to `DIRECTORY/TIME-COMMAND.jsonl` on a host.

    The whole file is replaced each time, atomically: it is a few kilobytes, and so a reader, or the next run after a
    crash or a lost connection, never meets half a line.
    """

    def __init__(self, host: "Host", directory: str, command: str, *, now: Callable[[], datetime] = utc_now) -> None:
        self._host = host
        self._now = now
        self.path = posixpath.join(directory, f"{now():%Y%m%dT%H%M%S.%f}-{command}.jsonl")
        self._lines: list[str] = []

    def write(self, event: str, **fields: object) -> None:
        """Add a line; it is on the host's disk when this returns.

        Raises:
            NotWritten: disk full, or not permitted. Nothing goes on without a journal.
            HostUnreachable
        """
        line = {"at": self._now().isoformat(timespec="milliseconds"), "event": event, **fields}
        self._lines.append(json.dumps(line, default=_jsonable, allow_nan=False))
        text = "\n".join(self._lines) + "\n"
        try:
            again_if_lost(lambda: self._host.write(self.path, text.encode()))
        except OperationFailed as error:
            raise NotWritten(error.what, why=error.why, hint=error.hint) from error


class JournalSink(Protocol):
    """Where the executor writes what it does."""

    def write(self, event: str, **fields: object) -> None: ...


class Diary:
    """A journal that must not stop the act: ending a stack matters more than writing that down.

    The first failure is told to `on_trouble`, and nothing more is written.
    """

    def __init__(self, journal: JournalSink, on_trouble: Callable[[str], None]) -> None:
        self._journal: JournalSink | None = journal
        self._on_trouble = on_trouble

    def write(self, event: str, **fields: object) -> None:
        """Add a line, if that is still possible."""
        if self._journal is None:
            return
        try:
            self._journal.write(event, **fields)
        except Dsv4Error as error:
            self._journal = None
            self._on_trouble(f"the journal is not written any further: {error}")


def _jsonable(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, list)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be journalled")
