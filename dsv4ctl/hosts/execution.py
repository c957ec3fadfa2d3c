"""One guarded command over one SSH session: feed it, drain it, and end it at its deadline."""

import threading
from collections.abc import Callable

import paramiko

from dsv4ctl.hosts.liveness import returncode

CHUNK = 1 << 18
SEND_CHUNK = 1 << 15
# While input is left to send and the window is full, we look again this often; nothing wakes us when it opens.
WINDOW_POLL_S = 0.01
WAKE_S = 1.0
# SIGTERM, a second, SIGKILL, and what the guard needs to notice (see guard.py).
KILL_GRACE_S = 5.0


class _Wake:
    """An event that paramiko's buffers set when there is something to read; only the reader clears it."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def set(self) -> None:
        self.event.set()

    def clear(self) -> None:
        """The buffers clear when they are empty; they must not, or two of them would race."""


class Execution:
    """A command in flight. `stdout` and `stderr` grow as it runs."""

    def __init__(self, channel: paramiko.Channel, data: bytes, *, hold: bool, clock: Callable[[], float]) -> None:
        """Send `data` as input; with `hold` the input is left open, and closing it ends the command."""
        self._channel = channel
        self._left = memoryview(data)
        self._hold = hold
        self._clock = clock
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []
        self._wake = _Wake()
        channel.in_buffer.set_event(self._wake)  # type: ignore[arg-type]
        channel.in_stderr_buffer.set_event(self._wake)  # type: ignore[arg-type]

    @property
    def stdout(self) -> bytes:
        return b"".join(self._stdout)

    @property
    def stderr(self) -> bytes:
        return b"".join(self._stderr)

    def wait(self, end: float) -> bool:
        """Run until the command has ended and all its output is here. False when `end` came first.

        A lost connection is an end too: `returncode` is None then.

        Raises:
            OSError, EOFError: the connection was lost.
        """
        while not self._over():
            if self._clock() >= end:
                return False
            self._wake.event.clear()
            sent, drained = self._send(), self._drain()
            if not sent and not drained and not self._over():
                pause = WINDOW_POLL_S if self._left else WAKE_S
                self._wake.event.wait(max(0.0, min(pause, end - self._clock())))
        return self._channel.status_event.wait(max(0.0, end - self._clock()))

    def kill(self) -> bool:
        """Have the guard end it, and wait until it has. False when the host did not confirm that."""
        self._left = memoryview(b"")
        self._hold = False
        self._channel.shutdown_write()
        return self.wait(self._clock() + KILL_GRACE_S)

    @property
    def returncode(self) -> int | None:
        """As subprocess has it; None when the host did not tell."""
        status = self._channel.exit_status
        return None if status == -1 else returncode(status)

    def _over(self) -> bool:
        channel = self._channel
        ended = channel.eof_received or channel.closed
        return bool(ended) and not channel.recv_ready() and not channel.recv_stderr_ready()

    def _drain(self) -> bool:
        drained = False
        if self._channel.recv_ready():
            self._stdout.append(self._channel.recv(CHUNK))
            drained = True
        if self._channel.recv_stderr_ready():
            self._stderr.append(self._channel.recv_stderr(CHUNK))
            drained = True
        return drained

    def _send(self) -> bool:
        """Send what fits now. A command that ended without reading everything is no error, as for a pipe."""
        channel = self._channel
        if self._left and (channel.closed or channel.eof_received):
            self._left = memoryview(b"")
        if self._left and channel.send_ready():
            self._left = self._left[channel.send(bytes(self._left[:SEND_CHUNK])) :]
            return True
        if not self._left and not self._hold and not channel.eof_sent:
            channel.shutdown_write()
        return False
