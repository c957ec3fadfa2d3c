"""A ProxyCommand: a local process whose standard input and output are the way to the host."""

import os
import signal
import socket
import subprocess
import tempfile
from typing import IO

STOP_DEADLINE_S = 2.0


class ProxyProcess:
    """The process and our end of the socket pair it talks over. It is a stream as paramiko wants one."""

    def __init__(self, command: str) -> None:
        """Start it as ssh does, with the person's shell and `exec`.

        Raises:
            OSError: there is no such shell.
        """
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        try:
            # A session of its own: Ctrl-C at our terminal is ours to handle.
            self._process = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def said(self) -> str | None:
        """The end of what it wrote to its standard error, for an error message."""
        if self._stderr.closed:
            return None
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 500))
        return self._stderr.read().decode(errors="backslashreplace").strip() or None

    def recv(self, size: int, /) -> bytes:
        return self._socket.recv(size)

    def send(self, data: bytes, /) -> int:
        return self._socket.send(data)

    def settimeout(self, timeout: float | None, /) -> None:
        self._socket.settimeout(timeout)

    def close(self) -> None:
        """End the stream. paramiko's thread calls this too; see `stop` for the process."""
        self._socket.close()

    def stop(self) -> None:
        """End the process and its children, and collect it."""
        self.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(STOP_DEADLINE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._stderr.close()
