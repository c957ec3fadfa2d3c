"""An HTTP proxy on the loopback that breaks connections in the ways that real ones do.

It passes each request on over a connection of its own, so that whatever goes wrong with the client's is its doing.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

LOOPBACK = "127.0.0.1"
_HEAD_END = b"\r\n\r\n"
_LARGE = 2000
_TOKEN = b'data: {"choices": [{"delta": {"content": "la "}}]}\n\n'


class Mode(StrEnum):
    """How it misbehaves."""

    HONEST = "honest"
    STALL_REUSED = "takes the second request of a connection and says nothing"
    STALL = "takes every request and says nothing"
    FORGET_IDLE = "has forgotten a connection that lay idle, and says nothing"
    CLOSE_IDLE = "closes a connection that lies idle, as servers do"
    CLOSE_ON_ARRIVAL = "closes a connection that lay idle just as a request arrives"
    RESET_REUSED = "resets the connection at its second request"
    RESET = "resets the connection at every request"
    CUT = "closes the connection after some bytes of the response"
    COMMENTS = "sends keep-alive comments and no answer"
    TOKENS = "sends tokens without an end"
    LARGE_REFUSED = "refuses what is larger than a few hundred bytes"
    FORGED = "answers with an error that would move a terminal's cursor"


@dataclass
class Proxy:
    """A running proxy. `mode` may be changed while it runs; `requests` counts what reached it."""

    to: tuple[str, int]
    mode: Mode
    idle_s: float
    cut_after: int
    port: int = 0
    requests: int = 0
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


class _Gone(Exception):
    """The client has left, or was made to."""


class _Client:
    """One connection of a client."""

    def __init__(self, proxy: Proxy, sock: socket.socket, stopped: threading.Event) -> None:
        self._proxy = proxy
        self._sock = sock
        self._stopped = stopped
        self._buffer = b""
        self._nth = 0

    def serve(self) -> None:
        with self._sock, contextlib.suppress(_Gone, OSError):
            while True:
                idle_s, request = self._request()
                self._nth += 1
                self._proxy.requests += 1
                self._misbehave(idle_s, len(request))
                self._pass_on(request)
                if _header(request.partition(_HEAD_END)[0], b"connection") == b"close":
                    return

    def _read(self) -> bytes:
        self._sock.settimeout(0.02)
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                return self._sock.recv(1 << 16)
        raise _Gone

    def _request(self) -> tuple[float, bytes]:
        """How long the connection lay idle, and the next request."""
        since = time.monotonic()
        closes = self._proxy.mode is Mode.CLOSE_IDLE and self._nth
        self._sock.settimeout(self._proxy.idle_s if closes else 0.02)
        while True:
            try:
                self._buffer += self._sock.recv(1 << 16)
                break
            except TimeoutError:
                if closes or self._stopped.is_set():
                    raise _Gone from None
        idle_s = time.monotonic() - since
        while _HEAD_END not in self._buffer:
            self._more()
        head, _, rest = self._buffer.partition(_HEAD_END)
        length = int(_header(head, b"content-length") or 0)
        while len(rest) < length:
            self._more()
            rest = self._buffer.partition(_HEAD_END)[2]
        self._buffer = rest[length:]
        return idle_s, head + _HEAD_END + rest[:length]

    def _more(self) -> None:
        data = self._read()
        if not data:
            raise _Gone
        self._buffer += data

    def _misbehave(self, idle_s: float, size: int) -> None:
        mode, again = self._proxy.mode, self._nth > 1
        idle = again and idle_s >= self._proxy.idle_s
        if mode is Mode.STALL or (mode is Mode.STALL_REUSED and again) or (mode is Mode.FORGET_IDLE and idle):
            self._say_nothing()
        if mode is Mode.RESET or (mode is Mode.RESET_REUSED and again):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise _Gone
        if mode is Mode.CLOSE_ON_ARRIVAL and idle:
            self._sock.shutdown(socket.SHUT_WR)
            raise _Gone
        if mode in {Mode.COMMENTS, Mode.TOKENS}:
            self._sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            while not self._stopped.wait(0.05):
                self._sock.sendall(b": still here\n\n" if mode is Mode.COMMENTS else _TOKEN)
            raise _Gone
        if mode is Mode.FORGED or (mode is Mode.LARGE_REFUSED and size > _LARGE):
            self._sock.sendall(_refusal(b"\x1b[2Jpwned\x9b5m\x07\nforged" if mode is Mode.FORGED else b"too large"))
            raise _Gone

    def _say_nothing(self) -> None:
        while self._read():
            pass
        raise _Gone

    def _pass_on(self, request: bytes) -> None:
        left = self._proxy.cut_after if self._proxy.mode is Mode.CUT else None
        with socket.create_connection(self._proxy.to) as server:
            head, _, body = request.partition(_HEAD_END)
            server.sendall(_without(head, b"connection") + b"\r\nConnection: close" + _HEAD_END + body)
            answer = b""
            while _HEAD_END not in answer:
                data = server.recv(1 << 16)
                if not data:
                    raise _Gone
                answer += data
            head, _, rest = answer.partition(_HEAD_END)
            data = _without(head, b"connection") + _HEAD_END + rest
            while data:
                self._sock.sendall(data if left is None else data[:left])
                left = None if left is None else left - len(data)
                if left is not None and left <= 0:
                    raise _Gone
                data = server.recv(1 << 16)


def _refusal(words: bytes) -> bytes:
    return b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(words), words)


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _without(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join([lines[0], *(line for line in lines[1:] if line.partition(b":")[0].strip().lower() != name)])


@contextlib.contextmanager
def misbehaving_proxy(
    to: int, mode: Mode = Mode.HONEST, *, idle_s: float = 5.0, cut_after: int = 200
) -> Iterator[Proxy]:
    """A proxy before the server on port `to` of the loopback, for the length of a block."""
    stopped = threading.Event()
    threads: list[threading.Thread] = []
    with socket.create_server((LOOPBACK, 0)) as listener:
        proxy = Proxy((LOOPBACK, to), mode, idle_s, cut_after, port=listener.getsockname()[1])
        listener.settimeout(0.05)

        def accept() -> None:
            while not stopped.is_set():
                with contextlib.suppress(TimeoutError):
                    sock, _ = listener.accept()
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    proxy.connections += 1
                    thread = threading.Thread(target=_Client(proxy, sock, stopped).serve, daemon=True)
                    threads.append(thread)
                    thread.start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield proxy
        finally:
            stopped.set()
            accepting.join(5)
            for thread in threads:
                thread.join(5)
