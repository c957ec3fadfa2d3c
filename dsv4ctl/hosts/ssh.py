"""A host reached over SSH. One connection carries everything, and is opened again when it was lost."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import httpx
import paramiko

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts import guard, remote_files
from dsv4ctl.hosts.base import FOLLOWER_LEASE_S, Completed, LogSource, LogStream
from dsv4ctl.hosts.command import (
    cannot_start,
    check_command,
    describe,
    ending,
    join,
    last_lines,
    require_success,
)
from dsv4ctl.hosts.connection import (
    Connection,
    ConnectionLost,
    open_connection,
)
from dsv4ctl.hosts.execution import Execution
from dsv4ctl.hosts.follow import START_DEADLINE_S, Lines, describe_source, follower_argv, started
from dsv4ctl.hosts.liveness import SILENCE_S
from dsv4ctl.hosts.ssh_config import CONFIG_ENV, Hop, resolve_with_ssh, route
from dsv4ctl.hosts.tunnel import SshTransport

# How long after our own deadline the guard ends a command that we hold, if it can no longer hear us.
LEASE_MARGIN_S = 2
STDERR_KEPT = 1 << 16


class SshHost:
    """A host that ssh can reach by `name` (see `Host` for what each method promises).

    Args:
        name: as one would give it to ssh: an alias of the configuration, a host name, or user@host.
        config_file: the configuration to use instead of ~/.ssh/config and the system's, as `ssh -F` does. Without it
            the environment variable DSV4CTL_SSH_CONFIG may name one.
        silence_s: how long a host may send nothing, when asked, before the connection counts as lost.
    """

    def __init__(
        self,
        name: str,
        *,
        config_file: str | None = None,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._config_file = config_file or os.environ.get(CONFIG_ENV) or None
        self._silence_s = silence_s
        self._clock = clock
        self._lock = threading.Lock()
        self._main: Connection | None = None
        self._opened = 0
        self._extra_lock = threading.Lock()
        self._extra: list[Connection] = []
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def losses(self) -> int:
        """How often the connection was opened anew (see `Host.losses`)."""
        return max(0, self._opened - 1)

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
        """Run a command (see `Host.run`). It is sent once: when the connection is lost afterwards, it is not repeated.

        What the login shell's start files print is left out. With `stdin` the command is ended up to a second
        late when the connection is lost; without, at once.
        """
        check_command(argv, env)
        started = self._clock()
        end = started + deadline_s
        settings = guard.exports(env or {})
        with contextlib.ExitStack() as stack:
            connection, channel = self._session(stack, end)
            left = max(1.0, end - self._clock())
            held, lease_s = (guard.Input.PASSED, left) if stdin else (guard.Input.HELD, left + LEASE_MARGIN_S)
            guarded = guard.guarded(argv, lease_s=lease_s, held=held, exports_size=len(settings), cwd=cwd)
            doing = f"{describe(argv)} ran"
            try:
                channel.exec_command(_command_line(guarded))
                execution = Execution(channel, settings + stdin, hold=not stdin, clock=self._clock)
                if not execution.wait(end):
                    raise self._deadline_exceeded(argv, deadline_s, killed=execution.kill())
            except (paramiko.SSHException, EOFError, OSError) as error:
                if connection.has_ended():
                    raise connection.lost(doing) from error
                raise OperationFailed(f"{self._name}: cannot run {describe(argv)}", why=str(error)) from error
            status = execution.returncode
            if status is None:
                raise connection.lost(doing)
        completed = self._completed(argv, cwd, status, execution, self._clock() - started)
        return require_success(self._name, completed) if check else completed

    def _completed(
        self, argv: Sequence[str], cwd: str | None, status: int, execution: Execution, duration_s: float
    ) -> Completed:
        stdout, stderr = guard.after_start(execution.stdout), guard.after_start(execution.stderr)
        reason = guard.not_started(execution.stderr)
        if reason is not None:
            raise cannot_start(self._name, argv, cwd, last_lines(reason))
        if stdout is None or stderr is None:
            raise OperationFailed(
                f"{self._name}: the login shell did not run {describe(argv)}; it {ending(status)}",
                why=last_lines(execution.stdout + execution.stderr),
                hint="The account may have no shell, or a forced command.",
            )
        return Completed(tuple(argv), status, stdout, stderr, duration_s)

    def _deadline_exceeded(self, argv: Sequence[str], deadline_s: float, *, killed: bool) -> DeadlineExceeded:
        what = f"{self._name}: {describe(argv)} had not ended after {deadline_s:g} s"
        if killed:
            return DeadlineExceeded(f"{what}, and was killed")
        return DeadlineExceeded(what, why="it was told to end, and the host did not confirm that it has")

    def _session(self, stack: contextlib.ExitStack, end: float) -> tuple[Connection, paramiko.Channel]:
        """A session on a live connection. A loss before anything was asked of the host is repaired once."""
        connection = self._connection(end)
        try:
            return connection, stack.enter_context(connection.command_session(end))
        except ConnectionLost:
            connection = self._connection(end)
            return connection, stack.enter_context(connection.command_session(end))

    def read(self, path: str, *, offset: int = 0, limit: int | None = None, deadline_s: float = 10.0) -> bytes:
        """Bytes of a file (see `Host.read`)."""
        argv = remote_files.read_argv(path, offset, limit)
        completed = self.run(argv, deadline_s=deadline_s, check=False)
        error = remote_files.read_error(self._name, path, completed)
        if error is not None:
            raise error
        return completed.stdout

    def write(self, path: str, data: bytes, *, mode: int = 0o600, deadline_s: float = 10.0) -> None:
        """Replace a file atomically (see `Host.write`)."""
        argv = remote_files.write_argv(path, mode, len(data))
        completed = self.run(argv, stdin=data, deadline_s=deadline_s, check=False)
        if completed.returncode != 0:
            raise OperationFailed(f"{self._name}: cannot write {path}", why=last_lines(completed.stderr))

    def http(self, *, timeout_s: float) -> httpx.Client:
        """A client whose connections the host makes (see `Host.http`). It speaks http, which SSH encrypts."""
        return httpx.Client(transport=self.transport(), timeout=timeout_s, trust_env=False)

    def transport(self) -> httpx.BaseTransport:
        """Connections that the host makes, below a client (see `Host.transport`)."""
        return SshTransport(self._connection)

    def follow(self, source: LogSource, *, tail_lines: int = 0) -> LogStream:
        """Follow a log (see `Host.follow`). A follower holds a session; a full connection gets a second beside it."""
        end = self._clock() + START_DEADLINE_S
        argv = guard.guarded(follower_argv(source, tail_lines), lease_s=FOLLOWER_LEASE_S, held=guard.Input.HELD)
        connection, channel = self._follower_session(end)
        try:
            channel.exec_command(_command_line(argv))
        except BaseException as error:
            connection.end_follower(channel)
            if isinstance(error, (paramiko.SSHException, EOFError, OSError)):
                raise connection.lost(f"starting to follow {describe_source(source)}") from error
            raise
        what = f"{self._name}: {describe_source(source)}"
        return started(Lines(ChannelPipe(self, connection, channel), what, self._clock), end)

    def _follower_session(self, end: float) -> tuple[Connection, paramiko.Channel]:
        """A session on any connection that has room, or on a new one."""
        for connection in (self._connection(end), *self._extra):
            with contextlib.suppress(ConnectionLost):
                if connection.alive and (channel := connection.follower_session(end)):
                    return connection, channel
        connection = self._open(end)
        try:
            channel = connection.follower_session(end)
            assert channel is not None, "a new connection has room"
        except BaseException:
            connection.close()
            raise
        with self._extra_lock:
            if not self._closed:
                self._extra.append(connection)
                return connection, channel
        connection.close()
        raise self._was_closed()

    def end_follower(self, connection: Connection, channel: paramiko.Channel) -> None:
        """Give a follower's session back; an extra connection goes with its last follower."""
        connection.end_follower(channel)
        with self._extra_lock:
            unused = [extra for extra in self._extra if extra.followers == 0]
            self._extra = [extra for extra in self._extra if extra not in unused]
        for extra in unused:
            extra.close()

    def _connection(self, end: float) -> Connection:
        """The connection, opened again if it was lost.

        Raises:
            HostUnreachable, UsageError, OperationFailed, DeadlineExceeded
        """
        if not self._lock.acquire(timeout=max(0.0, end - self._clock())):
            raise DeadlineExceeded(f"{self._name}: waited for another thread to connect, and it did not")
        try:
            if self._main is None or not self._main.alive:
                if self._main is not None:
                    self._main.close()
                    self._main = None
                self._main = self._open(end)
                self._opened += 1
            return self._main
        finally:
            self._lock.release()

    def _open(self, end: float) -> Connection:
        if self._closed:
            raise self._was_closed()
        targets = route(Hop(self._name), lambda hop: resolve_with_ssh(hop, self._config_file))
        return open_connection(targets, end=end, silence_s=self._silence_s, clock=self._clock)

    def _was_closed(self) -> OperationFailed:
        return OperationFailed(f"{self._name}: the host was closed")

    def close(self) -> None:
        """End the connections, and with them every command and follower of ours on the host."""
        self._closed = True
        with self._lock, self._extra_lock:
            connections = [c for c in (self._main, *self._extra) if c is not None]
            self._main, self._extra = None, []
        for connection in connections:
            connection.close()


class ChannelPipe:
    """A follower at the other end of a session."""

    def __init__(self, host: SshHost, connection: Connection, channel: paramiko.Channel) -> None:
        self._host = host
        self._connection = connection
        self._channel = channel
        self._stderr = b""
        self._closed = False

    def read(self, timeout_s: float) -> bytes | None:
        """See `Pipe.read`."""
        # What tail says about rotations arrives here too, and must not fill the window.
        if self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(STDERR_KEPT))[-STDERR_KEPT:]
        self._channel.settimeout(timeout_s)
        try:
            data = self._channel.recv(STDERR_KEPT)
        except TimeoutError:
            return None
        if not data and not self._closed and self._connection.has_ended():
            raise self._connection.lost("a log was followed")
        return data

    def stderr(self) -> bytes:
        """See `Pipe.stderr`."""
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(STDERR_KEPT))[-STDERR_KEPT:]
        return self._stderr

    def close(self) -> None:
        """Close the session: the guard sees its input end, and ends the follower."""
        self._closed = True
        self._host.end_follower(self._connection, self._channel)


def _command_line(argv: Sequence[str]) -> bytes:
    """For the login shell, whichever it is; `exec` makes the guard the leader of the session sshd made."""
    return f"exec {join(argv)}".encode(errors="surrogateescape")
