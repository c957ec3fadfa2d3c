"""One connection whose TCP side can be watched: when bytes came, how it ended, and whether the other side took ours.

A pool of connections hides what this instrument is for: it looks before it sends, closes what was idle for long, and
opens another without a word. So a connection is made by the host's own client, which knows how (here, over SSH, with
TLS), and is taken over before anything is sent on it.
"""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from dsv4ctl.errors import HostUnreachable

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

CONNECT_WITHIN_S = 10.0
_SLICE_S = 0.2
# What is asked for is a few words.
MOST_BYTES = 4 << 20
_TCP_INFO_SIZE = 104
_UNACKED_AT = 24


class NoConnection(Exception):
    """It could not be connected to. `refused`: the host is there and nothing listens; else nothing is known."""

    def __init__(self, why: str, *, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


class _Taken(Exception):
    """Ends the client's own use of a connection that we have taken."""


class Dialler:
    """Makes connections from one host. Safe to use from several threads; the caller closes it."""

    def __init__(self, host: "Host", check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._client = host.http(timeout_s=CONNECT_WITHIN_S)
        self._check = check
        self._clock = clock

    def connect(self, url: str, within_s: float) -> "Wire":
        """A new connection to the server of `url`, with TLS for https.

        Raises:
            NoConnection
        """
        self._check()
        secure = url.startswith("https:")
        wanted = "connection.start_tls.complete" if secure else "connection.connect_tcp.complete"
        taken: list[httpcore.NetworkStream] = []

        def trace(name: str, info: Mapping[str, Any]) -> None:
            if name == wanted:
                taken.append(info["return_value"])
                raise _Taken

        timeout = httpx.Timeout(min(within_s, CONNECT_WITHIN_S))
        try:
            self._client.get(url, extensions={"trace": trace}, timeout=timeout)
        except _Taken:
            pass
        except httpx.TransportError as error:
            raise NoConnection(_reason(error), refused=_refused(error)) from error
        return Wire(taken[0], self._check, self._clock)

    def close(self) -> None:
        self._client.close()


class TooMuch(httpcore.NetworkError):
    """More has come than any answer to what was asked."""


class Wire(httpcore.NetworkStream):
    """A stream with a watch on it.

    Attributes:
        deadline: until when something may be read or written, on the clock's scale; it moves on with each event.
        limit: the same, whatever comes.
        acknowledged: whether the other side's TCP had taken all that was sent when the wait for an answer was given up;
            None where the socket cannot be asked.
    """

    def __init__(self, stream: httpcore.NetworkStream, check: Callable[[], None], clock: Callable[[], float]) -> None:
        self._stream = stream
        self._check = check
        self._clock = clock
        self.deadline = self.limit = clock() + CONNECT_WITHIN_S
        self.received_bytes = 0
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None
        self.closed = False
        self.reset = False
        self.acknowledged: bool | None = None

    def begin(self, deadline: float, limit: float) -> None:
        """A new request: what is watched is counted from here."""
        self.deadline, self.limit = deadline, limit
        self.received_bytes = 0
        self.first_byte_at = self.last_byte_at = None

    @property
    def direct(self) -> bool:
        """Whether the socket is ours: through a tunnel it is another's."""
        return isinstance(self._stream.get_extra_info("socket"), socket.socket)

    def _acknowledged(self) -> bool | None:
        sock = self._stream.get_extra_info("socket")
        if not isinstance(sock, socket.socket) or not hasattr(socket, "TCP_INFO"):
            return None
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
        except OSError:
            return None
        (unacked,) = struct.unpack_from("I", info, _UNACKED_AT)
        return bool(unacked == 0)

    def ended(self) -> bool:
        """Whether the other side has ended a connection that should lie idle."""
        return bool(self._stream.get_extra_info("is_readable"))

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 (ours is the deadline)
        """Some bytes; b"" at the end. Looks up often enough for a Ctrl-C."""
        while True:
            self._check()
            left = min(self.deadline, self.limit) - self._clock()
            if left <= 0:
                self.acknowledged = self._acknowledged()
                raise httpcore.ReadTimeout("nothing came in time")
            try:
                data = self._stream.read(max_bytes, min(_SLICE_S, left))
            except httpcore.ReadTimeout:
                continue
            except httpcore.ReadError as error:
                self._broken(error)
                raise
            if self.received_bytes + len(data) > MOST_BYTES:
                raise TooMuch
            if data:
                self.last_byte_at = self._clock()
                self.first_byte_at = self.first_byte_at or self.last_byte_at
                self.received_bytes += len(data)
            else:
                self.closed = True
            return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        """Send it all before the deadline."""
        self._check()
        try:
            self._stream.write(buffer, max(0.01, self.deadline - self._clock()))
        except httpcore.WriteError as error:
            self._broken(error)
            raise

    def _broken(self, error: BaseException) -> None:
        causes = tuple(_causes(error))
        if any(isinstance(cause, ConnectionResetError | BrokenPipeError) for cause in causes):
            self.reset = True
        elif any(isinstance(cause, ssl.SSLEOFError) for cause in causes):
            self.closed = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 (httpcore's signature)
        return self._stream.get_extra_info(info)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _refused(error: BaseException) -> bool:
    """Whether somebody said no; a silence, an unknown name, a lost host and a certificate that is not trusted here say
    nothing about a server."""
    causes = _causes(error)
    if any(isinstance(cause, HostUnreachable | socket.gaierror | ssl.SSLCertVerificationError) for cause in causes):
        return False
    if any(isinstance(cause, ConnectionRefusedError | ConnectionResetError | ssl.SSLError) for cause in causes):
        return True
    # Of a connection that the host itself made, sshd says no more than this.
    return any("Connect failed" in str(cause) for cause in causes)


def _reason(error: BaseException) -> str:
    causes = _causes(error)
    said = next((str(cause) for cause in causes if str(cause)), type(error).__name__)
    return "no connection within its deadline" if isinstance(error, httpx.ConnectTimeout) else said
