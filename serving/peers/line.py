"""One TCP connection, held open to a process on another host or this one: whether that process is still there.

A kernel closes the connections of a process that ends, at once and however it ended, and keeps those of a process that
is stopped. So one connection that is kept tells a dead process from a frozen one, which a new connection for each look
could not: a frozen process accepts none, and once its backlog is full it looks like a host that is gone.
"""

import contextlib
import errno
import select
import socket
from typing import Final

CONNECT_WITHIN_S: Final = 1.0

REFUSALS: Final = 2
"""So many in a row, and nobody listens there any more. One may be a listener that is being replaced."""

SILENCES: Final = 10
"""So many attempts in a row without any answer, and the host is gone: a second each, or a short loss of the network."""

_SILENT: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})

# A host that vanished answers no keepalive: 5 s of quiet and five of these, and the connection is over.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5))

_CHUNK: Final = 4096


class Line:
    """A connection to `address`. `look` opens it and says what it shows; nothing is ever sent on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._refusals = 0
        self._silences = 0

    @property
    def is_open(self) -> bool:
        """Whether it was connected when last looked at."""
        return self._socket is not None

    @property
    def is_gone(self) -> bool:
        """Whether so many attempts have failed that whoever was there is not there any more."""
        return self._refusals >= REFUSALS or self._silences >= SILENCES

    @property
    def is_refused(self) -> bool:
        """Whether the host answers and nobody listens there: whoever was there has ended, and not just gone silent."""
        return self._refusals >= REFUSALS

    @property
    def why(self) -> str:
        """What the failed attempts were."""
        if self._refusals:
            return f"refused {self._refusals} connections in a row"
        return f"gave no answer to {self._silences} connections in a row"

    def fileno(self) -> int:
        """For select; only of a line that is open."""
        assert self._socket is not None
        return self._socket.fileno()

    def look(self) -> None:
        """Connect unless connected, once, within CONNECT_WITHIN_S; notice a connection that has ended.

        Raises:
            OSError: this process cannot connect at all, for instance for want of file descriptors; that says nothing
                about the other end.
        """
        if self._socket is not None and not self._has_ended(self._socket):
            return
        self.close()
        try:
            made = socket.create_connection(self.address, timeout=CONNECT_WITHIN_S)
        except (ConnectionRefusedError, ConnectionResetError):
            self._refusals += 1
            return
        except TimeoutError:
            self._silences += 1
            return
        except OSError as error:
            if error.errno not in _SILENT:
                raise
            self._silences += 1
            return
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = made
        self._refusals = self._silences = 0

    def close(self) -> None:
        """Let go of the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _has_ended(connection: socket.socket) -> bool:
        """Read away what the other end has sent (ZeroMQ greets) and see whether it has closed."""
        try:
            while True:
                if not connection.recv(_CHUNK):
                    return True
        except BlockingIOError:
            return False
        except OSError:
            return True


def wait(lines: list[Line], timeout_s: float) -> None:
    """Until one of these open lines has something to say, at most `timeout_s`."""
    poller = select.poll()
    for line in lines:
        poller.register(line.fileno(), select.POLLIN)
    with contextlib.suppress(InterruptedError):
        poller.poll(timeout_s * 1000)
