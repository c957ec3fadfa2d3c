"""HTTP over channels of an SSH connection: the host itself connects, so its loopback is reachable and no port is opened
here. httpx gives us the requests, httpcore speaks HTTP and keeps connections, we only give it streams."""

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore
import httpx
import paramiko

from dsv4ctl.errors import Dsv4Error
from dsv4ctl.hosts.connection import Connection
from dsv4ctl.hosts.lost_tunnel import LostWhileReading, LostWhileWriting

Connect = Callable[[float], Connection]
# httpx passes its timeouts along; without one of its own a connection still has an end.
DEFAULT_CONNECT_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 100
KEEPALIVE_EXPIRY_S = 30.0


class ChannelStream(httpcore.NetworkStream):
    """A `direct-tcpip` channel as httpcore wants a stream."""

    def __init__(self, channel: paramiko.Channel, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes; b"" at the end of the stream. An end that is a lost connection is an error, not an answer."""
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(f"{self._connection.target}: no answer within {timeout} s") from error
        if not data and not self._channel.eof_received and self._connection.has_ended():
            raise LostWhileReading(str(self._connection.lost("an answer was awaited")))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send it all within `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while buffer:
            self._channel.settimeout(None if end is None else max(0.01, end - time.monotonic()))
            try:
                sent = self._channel.send(buffer)
            except TimeoutError as error:
                raise httpcore.WriteTimeout(f"{self._connection.target}: not sent within {timeout} s") from error
            except (OSError, EOFError, paramiko.SSHException) as error:
                kind = LostWhileWriting if self._connection.has_ended() else httpcore.WriteError
                raise kind(f"{self._connection.target}: {error}") from error
            if sent == 0:
                raise httpcore.WriteError(f"{self._connection.target}: the other side closed the connection")
            buffer = buffer[sent:]

    def close(self) -> None:
        self._channel.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,  # noqa: ARG002 (httpcore's signature, as below)
        server_hostname: str | None = None,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """SSH encrypts already; what is reached this way is a loopback."""
        raise httpcore.UnsupportedProtocol("https is not spoken over SSH; use http, which SSH encrypts")

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 (httpcore's signature)
        """httpcore asks whether an idle connection became readable, which means that the server closed it."""
        if info == "is_readable":
            channel = self._channel
            return channel.recv_ready() or bool(channel.eof_received) or channel.closed
        return None


class ChannelBackend(httpcore.NetworkBackend):
    """Makes the connections of a pool from the host."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """Connect from the host; opens the SSH connection if there is none, or if it was lost."""
        timeout_s = DEFAULT_CONNECT_TIMEOUT_S if timeout is None else timeout
        end = time.monotonic() + timeout_s
        try:
            connection = self._connect(end)
            channel = connection.tunnel(host, port, max(0.01, end - time.monotonic()))
        except Dsv4Error as error:
            kind = httpcore.ConnectTimeout if time.monotonic() >= end else httpcore.ConnectError
            raise kind(str(error)) from error
        return ChannelStream(channel, connection)


class SshTransport(httpx.BaseTransport):
    """An httpx transport whose connections the host makes."""

    def __init__(self, connect: Connect) -> None:
        self._pool = httpcore.ConnectionPool(
            network_backend=ChannelBackend(connect),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_EXPIRY_S,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of the response streams."""
        core = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = self._pool.handle_request(core)
        except _CORE_ERRORS as error:
            raise _as_httpx(error, request) from error
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response, request),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response.iter_stream()
        except _CORE_ERRORS as error:
            raise _as_httpx(error, self._request) from error

    def close(self) -> None:
        self._response.close()


_CORE_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """The error of the same name; httpx has one for each that httpcore raises, and ours are kinds of those."""
    names = (base.__name__ for base in type(error).__mro__)
    kind: type[httpx.TransportError] = next(getattr(httpx, name) for name in names if hasattr(httpx, name))
    return kind(str(error), request=request)
