"""Two things paramiko leaves to others: noticing that a peer fell silent, and the name of the signal that ended a
remote command. Both sit at places paramiko offers for it: the socket and the packetizer it is given."""

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from typing import Protocol

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST

# How long a peer that was asked for a sign of life may send nothing at all. It is asked three times as often.
SILENCE_S = 6.0

# A status no process can exit with, plus the signal's number.
SIGNALLED = 1 << 16
# "SIG@openssh.com": a signal that RFC 4254 has no name for.
UNNAMED_SIGNAL = 128


class Stream(Protocol):
    """What paramiko asks of a socket; its own channels are streams too."""

    def send(self, data: bytes, /) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def settimeout(self, timeout: float | None, /) -> None: ...

    def close(self) -> None: ...


class WatchedStream:
    """A socket that ends when the peer owes us a sign of life for too long.

    paramiko's thread calls `recv` with a timeout of 0.1 s, so silence is looked at ten times a second; a writer that is
    stuck behind a full send buffer passes here as well.
    """

    def __init__(
        self, stream: Stream, silence_s: float = SILENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self.silence_s = silence_s
        self._clock = clock
        self._asked_at: float | None = None
        self._closed = False  # paramiko reads this of whatever it is given
        self.fell_silent = False

    def expect(self) -> None:
        """Something that the peer must answer is about to be sent."""
        if self._asked_at is None:
            self._asked_at = self._clock()

    def recv(self, size: int, /) -> bytes:
        """As a socket's; b"" when the peer fell silent."""
        try:
            data = self._stream.recv(size)
        except TimeoutError:
            if self._overdue():
                return b""
            raise
        self._asked_at = None
        self._acknowledge_at_once()
        return data

    def _acknowledge_at_once(self) -> None:
        """A server sends the rest of an answer when its beginning was acknowledged (Nagle), and a kernel waits 40 ms
        with that unless it is told not to, again after each time. A pipe to a proxy has no such thing.
        """
        if isinstance(self._stream, socket.socket) and hasattr(socket, "TCP_QUICKACK"):
            # A socket that has ended meanwhile is noticed by the next read.
            with contextlib.suppress(OSError):
                self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def send(self, data: bytes, /) -> int:
        """As a socket's; EOFError when the peer fell silent."""
        try:
            return self._stream.send(data)
        except TimeoutError:
            if self._overdue():
                raise EOFError from None
            raise

    def _overdue(self) -> bool:
        asked_at = self._asked_at
        self.fell_silent = asked_at is not None and self._clock() - asked_at > self.silence_s
        return self.fell_silent

    def settimeout(self, timeout: float | None, /) -> None:
        self._stream.settimeout(timeout)

    def close(self) -> None:
        self._closed = True
        self._stream.close()


class SignalPacketizer(paramiko.packet.Packetizer):
    """Turns the message "ended by signal X", which paramiko drops, into an exit status (see `returncode`)."""

    def read_message(self) -> tuple[int, paramiko.Message]:
        """The next message of the peer."""
        kind, message = super().read_message()
        if kind == MSG_CHANNEL_REQUEST:
            channel, request, _want_reply = message.get_int(), message.get_text(), message.get_boolean()
            if request == "exit-signal":
                return kind, _as_exit_status(channel, message.get_text())
            message.rewind()
        return kind, message


def _as_exit_status(channel: int, name: str) -> paramiko.Message:
    known = signal.Signals.__members__.get(f"SIG{name}")
    message = paramiko.Message()
    message.add_int(channel)
    message.add_string("exit-status")
    message.add_boolean(False)
    message.add_int(SIGNALLED + (known.value if known else UNNAMED_SIGNAL))
    message.rewind()
    return message


def returncode(exit_status: int) -> int:
    """The exit status of a channel as subprocess has it: negative for a signal. -128 if sshd does not tell which."""
    return exit_status if exit_status < SIGNALLED else SIGNALLED - exit_status
