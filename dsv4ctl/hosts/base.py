"""What a host can do for us. Everything the tool does to a machine goes through this protocol, so that whatever
works here works over SSH."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from dsv4ctl.errors import HostUnreachable

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

# A follower on the host ends when it has not heard from us for this long (see guard.py).
FOLLOWER_LEASE_S = 60


@dataclass(frozen=True)
class Completed:
    """A finished command: its argv as given, exit status, both streams whole, and seconds taken (monotonic)."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes
    duration_s: float

    @property
    def text(self) -> str:
        """Standard output as text; undecodable bytes are kept visible as escapes."""
        return self.stdout.decode(errors="backslashreplace")


@dataclass(frozen=True)
class FileLog:
    """A log file on the host. It may be rotated (renamed, or truncated in place) while it is followed."""

    path: str


@dataclass(frozen=True)
class JournalLog:
    """The journal of one systemd unit. `user` says which manager's journal; `invocation`, where it is given, leaves out
    all but one start of it."""

    unit: str
    user: bool = True
    invocation: str | None = None


@dataclass(frozen=True)
class CommandLog:
    """The output of a command whose life is tied to ours: it ends with its stream, with the connection, and with us."""

    argv: tuple[str, ...]


LogSource = FileLog | JournalLog | CommandLog


class LogStream(Protocol):
    """Lines of a log as they come. A context manager: leaving it ends the follower on the host."""

    def readline(self, timeout_s: float) -> str | None:
        """The next line without its newline, or None when none came within `timeout_s` seconds.

        Raises:
            HostUnreachable: the connection was lost. What was read before is not repeated on a new stream.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def again_if_lost(do: Callable[[], T]) -> T:
    """Do something that may be done twice, once more when the connection was lost in the middle of it."""
    try:
        return do()
    except HostUnreachable:
        return do()


class Host(Protocol):
    """One machine. Implementations are safe to use from several threads."""

    @property
    def name(self) -> str:
        """As a person wrote it: `local`, or the name given to ssh."""

    @property
    def losses(self) -> int:
        """How often the way to it was lost and found again so far: what was under way then was cut off by that."""

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
    ) -> Completed:
        """Run a command to its end. `env` is added to the host's own environment.

        Raises:
            DeadlineExceeded: it had not ended after `deadline_s`; it was killed on the host, with its children.
            OperationFailed: `check` and a non-zero exit status (the message carries the last lines of stderr),
                or the program does not exist.
            HostUnreachable: the host could not be reached or the connection was lost.
        """

    def read(self, path: str, *, offset: int = 0, limit: int | None = None, deadline_s: float = 10.0) -> bytes:
        """Bytes of a file (files under /proc too). A negative `offset` counts from the end.

        Raises:
            FileNotFoundError, PermissionError: as for a local file, with the host and path in the message.
            HostUnreachable, DeadlineExceeded
        """

    def write(self, path: str, data: bytes, *, mode: int = 0o600, deadline_s: float = 10.0) -> None:
        """Replace a file atomically: a reader sees the old content or the new, also after a crash. Makes parents.

        Raises:
            OperationFailed: not writable, disk full; the old file is as it was and no temporary file is left.
            HostUnreachable, DeadlineExceeded
        """

    def http(self, *, timeout_s: float) -> "httpx.Client":
        """A client whose connections are made on the host, so that `http://127.0.0.1:PORT` is the host's loopback.

        Keep-alive is on. The caller closes it. It raises httpx errors; a lost connection is an httpx.TransportError.
        """

    def transport(self) -> "httpx.BaseTransport":
        """What `http` sends its requests through, for who asks the same thing many times a second. The caller closes
        it. Each request says its own timeouts."""

    def follow(self, source: LogSource, *, tail_lines: int = 0) -> LogStream:
        """Follow a log, beginning with its last `tail_lines` lines."""

    def close(self) -> None: ...
