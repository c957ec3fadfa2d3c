"""Following a log: the host's own `tail` or `journalctl` under guard, and the cutting of bytes into lines."""

import time
from collections.abc import Callable
from typing import Protocol, Self

from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import CommandLog, FileLog, LogSource
from dsv4ctl.hosts.command import last_lines
from dsv4ctl.hosts.guard import STARTED, not_started

# A line longer than this comes in pieces: a log without newlines must not fill our memory.
MAX_LINE = 1 << 20


def follower_argv(source: LogSource, tail_lines: int) -> list[str]:
    """What to run on the host. `tail -F` reopens a file that was renamed away, and starts over when it is truncated."""
    if isinstance(source, CommandLog):
        return list(source.argv)
    count = str(max(0, tail_lines))
    if isinstance(source, FileLog):
        path = source.path if source.path.startswith("/") else f"./{source.path}"
        return ["tail", "-n", count, "-F", "--", path]
    # Not `--user --unit`: that reads the files of users only, and root's units are in the system's.
    return [
        "journalctl",
        "--user-unit" if source.user else "--unit",
        source.unit,
        "--lines",
        count,
        "--follow",
        "--output",
        "cat",
        "--no-pager",
    ]


class Pipe(Protocol):
    """A running follower."""

    def read(self, timeout_s: float) -> bytes | None:
        """Some bytes of its output; None when none came in time; b"" when it has ended by itself.

        Raises:
            HostUnreachable: the connection was lost.
        """

    def stderr(self) -> bytes:
        """What it complained about so far."""

    def close(self) -> None:
        """End it, and return when it has ended or the host has been told."""


class Lines:
    """A LogStream over a follower. For one reader; `close` may come from another thread."""

    def __init__(self, pipe: Pipe, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` names the log and the host in an error."""
        self._pipe = pipe
        self._what = what
        self._clock = clock
        self._started = False
        self._buffer = bytearray()
        self._searched = 0

    def readline(self, timeout_s: float) -> str | None:
        """The next line, or None when none came in time (see `LogStream`).

        Raises:
            OperationFailed: the follower ended by itself, or could not be started.
            HostUnreachable: the connection was lost.
        """
        end = self._clock() + timeout_s
        while (line := self._cut()) is None:
            data = self._pipe.read(max(0.0, end - self._clock()))
            if data is None:
                return None
            if not data:
                stderr = self._pipe.stderr()
                why = not_started(stderr)
                raise OperationFailed(
                    f"{self._what}: cannot be followed", why=last_lines(stderr if why is None else why)
                )
            self._buffer += data
        return line.decode(errors="backslashreplace")

    def _cut(self) -> bytes | None:
        """Take the first line off the buffer. What a login shell printed before the guard's mark is no part of it."""
        if not self._started:
            head, mark, rest = self._buffer.partition(STARTED)
            self._started = bool(mark)
            self._buffer = rest if mark else head
            if not mark:
                return None
        at = self._buffer.find(b"\n", self._searched)
        if at < 0 and len(self._buffer) < MAX_LINE:
            self._searched = len(self._buffer)
            return None
        self._searched = 0
        length, skip = (at, 1) if at >= 0 else (MAX_LINE, 0)
        line = bytes(self._buffer[:length])
        del self._buffer[: length + skip]
        return line

    def close(self) -> None:
        """End the follower on the host."""
        self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
