"""JSON lines over a TCP connection, with a deadline on each."""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

Message = Mapping[str, Any]

_LONGEST: Final = 64 << 20
_CHUNK: Final = 1 << 16


class Lost(Exception):
    """The other end has closed the connection, or its host is gone."""


class Late(Exception):
    """No whole message came in time."""


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = bytearray()

    def fileno(self) -> int:
        """For select. `waiting` may have a message that select does not know of."""
        return self._connection.fileno()

    @property
    def waiting(self) -> bool:
        """Whether a whole message was read already."""
        return b"\n" in self._read

    def send(self, message: Message, within_s: float = 5.0) -> None:
        """Raises Lost, also where the other end takes nothing for that long."""
        try:
            self._connection.settimeout(within_s)
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Lost(str(error) or type(error).__name__) from error

    def receive(self, within_s: float) -> Message:
        """The next message.

        Raises:
            Late: it did not come.
            Lost: nothing will come.
        """
        end = time.monotonic() + within_s
        while not self.waiting:
            left = end - time.monotonic()
            if left <= 0:
                raise Late
            try:
                self._connection.settimeout(left)
                chunk = self._connection.recv(_CHUNK)
            except TimeoutError as error:
                raise Late from error
            except OSError as error:
                raise Lost(str(error) or type(error).__name__) from error
            if not chunk or len(self._read) > _LONGEST:
                raise Lost("it closed the connection" if not chunk else "it sends no end of a message")
            self._read += chunk
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        try:
            message: Message = json.loads(line)
        except ValueError as error:
            raise Lost(f"it sends something else than was agreed: {error}") from error
        if not isinstance(message, dict):
            raise Lost("it sends something else than was agreed")
        return message

    def close(self) -> None:
        """Let go of it; the other end notices."""
        self._connection.close()


def connect(address: tuple[str, int], within_s: float) -> Line:
    """A connection to whoever listens there, now or within so many seconds.

    Raises:
        Late: nobody does.
    """
    end = time.monotonic() + within_s
    while True:
        left = end - time.monotonic()
        try:
            return Line(socket.create_connection(address, timeout=max(0.1, min(left, 5.0))))
        except OSError as error:
            if left <= 0:
                raise Late(f"nobody listens on {address[0]}:{address[1]}: {error}") from error
        time.sleep(0.1)
