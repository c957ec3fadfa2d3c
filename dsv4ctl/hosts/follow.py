"""Following a log: the host's own `tail`, `journalctl` or another command under guard, and the cutting into lines."""

import time
from collections.abc import Callable
from typing import Protocol, Self

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts.base import CommandLog, FileLog, LogSource
from dsv4ctl.hosts.command import describe, last_lines
from dsv4ctl.hosts.guard import after_start, not_started

# A line longer than this comes in pieces: a log without newlines must not fill our memory.
MAX_LINE = 1 << 20
START_DEADLINE_S = 20.0
FOLLOWING = b"\x1edsv4ctl: following\n"

# $1 how many old lines, $2 path. `tail -F` would do, if it did not drop what the old file still got after it was
# renamed. Here a reader keeps the old file until a new one is there and a second has passed, and then reads it to its
# end: `--pid` makes tail do that when the watcher beside it is gone. Truncation in place is tail's own business.
# Where to read on from is known before the mark, or is the end of the old lines: no later line is missed.
_FOLLOW_FILE = r"""
old=$1 path=$2
mark() { [ "$marked" ] || printf '\036dsv4ctl: following\n'; marked=yes; }
follow_one() {
    position=0
    [ "$old" != 0 ] || position=$(stat -Lc %s /dev/fd/4)
    mark
    if [ "$old" != all ] && [ "$old" != 0 ]; then
        tail -n "$old" <&4 || return
        read -r name position </proc/self/fdinfo/4
    fi
    (
        exec >/dev/null 2>&1
        until [ -e "$path" ] && [ ! "$path" -ef /dev/fd/4 ]; do
            [ -d "/proc/$$" ] || exit
            sleep 0.3
        done
        sleep 1
    ) &
    tail -s 0.1 --pid="$!" -c "+$((position + 1))" -f </dev/fd/4
}
marked=
while :; do
    if [ -e "$path" ]; then
        follow_one 4<"$path" || exit
    else
        mark
        sleep 0.2
    fi
    old=all
done
"""

# $1 how many old lines, then the option that chooses the unit, and what else a line must have.
_FOLLOW_JOURNAL = r"""
old=$1
shift
if [ "$old" = 0 ]; then set -- --since "@$(date +%s.%N)" --no-tail "$@"; else set -- --lines "$old" "$@"; fi
printf '\036dsv4ctl: following\n'
exec journalctl --follow --output cat --no-pager --quiet "$@"
"""

_FOLLOW_COMMAND = r"""
printf '\036dsv4ctl: following\n'
exec "$@"
"""


def follower_argv(source: LogSource, tail_lines: int) -> list[str]:
    """What to run on the host. It prints `FOLLOWING` when it knows where to begin, and then the log."""
    if isinstance(source, CommandLog):
        return ["/bin/sh", "-c", _FOLLOW_COMMAND, "follow", *source.argv]
    count = str(max(0, tail_lines))
    if isinstance(source, FileLog):
        path = source.path if source.path.startswith("/") else f"./{source.path}"
        return ["/bin/sh", "-c", _FOLLOW_FILE, "follow", count, path]
    # Not `--user --unit`: that reads the files of users only, and root's units are in the system's.
    unit = f"--{'user-' if source.user else ''}unit={source.unit}"
    one_start = [f"_SYSTEMD_INVOCATION_ID={source.invocation}"] if source.invocation else []
    return ["/bin/sh", "-c", _FOLLOW_JOURNAL, "follow", count, unit, *one_start]


def describe_source(source: LogSource) -> str:
    """A log for a person."""
    if isinstance(source, FileLog):
        return source.path
    if isinstance(source, CommandLog):
        return describe(source.argv)
    return f"the journal of {'user ' if source.user else ''}unit {source.unit}"


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
        self._buffer = bytearray()
        self._searched = 0

    def start(self, end: float) -> Self:
        """Wait until the follower knows where to begin: what is written to the log from then on is not missed.

        What a login shell's start files print comes before that, and is no part of the log.

        Raises:
            DeadlineExceeded: it did not start before `end`.
            OperationFailed, HostUnreachable: as `readline`.
        """
        while FOLLOWING not in self._buffer:
            if not self._fill(end):
                raise DeadlineExceeded(f"{self._what}: the follower did not start in time")
        del self._buffer[: self._buffer.index(FOLLOWING) + len(FOLLOWING)]
        return self

    def readline(self, timeout_s: float) -> str | None:
        """The next line, or None when none came in time (see `LogStream`).

        Raises:
            OperationFailed: the follower ended by itself, or could not be started.
            HostUnreachable: the connection was lost.
        """
        end = self._clock() + timeout_s
        while (line := self._cut()) is None:
            if not self._fill(end):
                return None
        return line.decode(errors="backslashreplace")

    def _fill(self, end: float) -> bool:
        """Read some more; False when nothing came before `end`."""
        data = self._pipe.read(max(0.0, end - self._clock()))
        if data == b"":
            said = self._pipe.stderr()
            why = not_started(said) or after_start(said) or said
            raise OperationFailed(f"{self._what}: cannot be followed", why=last_lines(why))
        self._buffer += data or b""
        return data is not None

    def _cut(self) -> bytes | None:
        """Take the first line off the buffer."""
        at = self._buffer.find(b"\n", self._searched)
        if at < 0 and len(self._buffer) < MAX_LINE:
            self._searched = len(self._buffer)
            return None
        self._searched = 0
        length, skip = (at, 1) if 0 <= at <= MAX_LINE else (MAX_LINE, 0)
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


def started(lines: Lines, end: float) -> Lines:
    """The same, started; closed again when it does not start before `end`."""
    try:
        return lines.start(end)
    except BaseException:
        lines.close()
        raise
