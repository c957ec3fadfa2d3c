"""One SSH connection to a host, through its jumps, kept under watch until it is closed or lost."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import paramiko

from dsv4ctl.errors import DeadlineExceeded, HostUnreachable, OperationFailed
from dsv4ctl.hosts import known_hosts
from dsv4ctl.hosts.dial import dial
from dsv4ctl.hosts.identities import authenticate
from dsv4ctl.hosts.liveness import SignalPacketizer, Stream, WatchedStream
from dsv4ctl.hosts.proxy_command import ProxyProcess
from dsv4ctl.hosts.ssh_config import Target

# ConnectTimeout of the ssh configuration goes before this.
CONNECT_TIMEOUT_S = 10.0
# sshd allows ten sessions a connection (MaxSessions in sshd_config(5)). Commands share most of them, and take turns
# when there are more; a follower keeps its own for as long as it lives.
COMMAND_SESSIONS = 6
FOLLOWER_SESSIONS = 3
RENEW_EVERY_S = 15.0
JOIN_DEADLINE_S = 2.0
# What sshd takes to free a session that we closed, at the most.
RELEASE_S = 5.0

# paramiko logs errors that we raise; without a handler, Python would print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ConnectionLost(HostUnreachable):
    """The connection broke. Whether what was asked last had an effect is not known."""


class Connection:
    """An authenticated transport to the last of `targets`, over those before it. Made by `open_connection`."""

    def __init__(
        self,
        targets: Sequence[Target],
        transports: Sequence[paramiko.Transport],
        stream: WatchedStream,
        proxy: ProxyProcess | None,
        clock: Callable[[], float],
    ) -> None:
        self.target = targets[-1]
        self._transports = transports
        self._transport = transports[-1]
        self._stream = stream
        self._proxy = proxy
        self._clock = clock
        self._commands = threading.BoundedSemaphore(COMMAND_SESSIONS)
        self._followers = threading.BoundedSemaphore(FOLLOWER_SESSIONS)
        self._held: set[paramiko.Channel] = set()
        self._in_use = 0
        self._released_at = -math.inf
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"ssh {self.target.alias}", daemon=True)
        self._keeper.start()

    @property
    def alive(self) -> bool:
        """Whether the connection is usable, as far as we have noticed."""
        return not self._closing.is_set() and self._transport.is_active()

    @property
    def followers(self) -> int:
        """How many followers it carries."""
        return len(self._held)

    def lost(self, doing: str) -> ConnectionLost:
        """The error of a connection that broke while we were `doing` something."""
        if self._closing.is_set():
            why = "it was closed"
        elif self._stream.fell_silent:
            why = f"nothing came from the host for {self._stream.silence_s:g} s"
        else:
            why = "the host, or something on the way, ended it"
        return ConnectionLost(f"{self.target}: the connection was lost while {doing}", why=why)

    def has_ended(self) -> bool:
        """Whether the connection is gone, asked after a channel of it ended without a word.

        A transport closes its channels first and says that it is gone a moment later.
        """
        self._transport.join(0.2 if self._transport.is_active() else 0)
        return not self.alive

    @contextlib.contextmanager
    def command_session(self, end: float) -> Iterator[paramiko.Channel]:
        """A session for one command; waits its turn until `end`. Leaving closes it.

        Raises:
            DeadlineExceeded: the sessions were all busy.
            ConnectionLost: nothing was asked of the host yet.
        """
        if not self._commands.acquire(timeout=max(0.0, end - self._clock())):
            raise DeadlineExceeded(f"{self.target}: all {COMMAND_SESSIONS} sessions were busy until the deadline")
        try:
            with contextlib.closing(self._open_session(end)) as channel:
                try:
                    yield channel
                finally:
                    self._release()
        finally:
            self._commands.release()

    def follower_session(self, end: float) -> paramiko.Channel | None:
        """A session for a follower, or None when this connection has no room for one. `end_follower` gives it back."""
        if not self._followers.acquire(blocking=False):
            return None
        try:
            channel = self._open_session(end)
        except BaseException:
            self._followers.release()
            raise
        with self._lock:
            self._held.add(channel)
        return channel

    def end_follower(self, channel: paramiko.Channel) -> None:
        """Close a follower's session; doing it twice is harmless."""
        with self._lock:
            if channel not in self._held:
                return
            self._held.discard(channel)
        channel.close()
        self._release()
        self._followers.release()

    def _release(self) -> None:
        with self._lock:
            self._in_use -= 1
            self._released_at = self._clock()

    def _sessions_in_use(self) -> bool:
        """Whether sessions of ours besides the one being opened may be why the host refuses it; it frees one a little
        later than we do."""
        with self._lock:
            return self._in_use > 1 or self._clock() - self._released_at < RELEASE_S

    def _open_session(self, end: float) -> paramiko.Channel:
        """A new session. A server with a small MaxSessions refuses more: then those in use must end first."""
        with self._lock:
            self._in_use += 1
        try:
            while True:
                try:
                    return self._transport.open_session(timeout=max(0.01, end - self._clock()))
                except (paramiko.SSHException, EOFError, OSError) as error:
                    if self.has_ended():
                        raise self.lost("a session was opened") from error
                    if not self._sessions_in_use():
                        raise OperationFailed(f"{self.target}: it opens no session", why=str(error)) from error
                    if self._clock() >= end or self._closing.wait(0.05):
                        what = f"{self.target}: no session was free until the deadline"
                        raise DeadlineExceeded(what, why=str(error)) from error
        except BaseException:
            self._release()
            raise

    def tunnel(self, host: str, port: int, timeout_s: float) -> paramiko.Channel:
        """A TCP connection made by the host itself, as a channel.

        Raises:
            ConnectionLost
            OperationFailed: nothing listens there, or sshd does not allow it.
        """
        try:
            return self._transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s)
        except paramiko.ChannelException as error:
            prohibited = error.code == 1
            raise OperationFailed(
                f"{self.target}: no connection to {host}:{port} from there",
                why="sshd does not allow it" if prohibited else error.text,
                hint="Set AllowTcpForwarding in sshd_config of the host." if prohibited else None,
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if self.has_ended():
                raise self.lost(f"connecting to {host}:{port} from there") from error
            raise OperationFailed(
                f"{self.target}: no connection to {host}:{port} from there", why=str(error)
            ) from error

    def _keep(self) -> None:
        """Ask for signs of life, and renew the followers' leases."""
        renewed_at = self._clock()
        while not self._closing.wait(self._stream.silence_s / 3) and self._transport.is_active():
            self._stream.expect()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                self._transport.close()
            if self._clock() - renewed_at >= RENEW_EVERY_S:
                renewed_at = self._clock()
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            held = list(self._held)
        for channel in held:
            # A channel that ended meanwhile needs no renewal; its reader sees the end.
            with contextlib.suppress(OSError, EOFError):
                if channel.send_ready():
                    channel.send(b"\n")

    def close(self) -> None:
        """End everything that runs over it, and the way to it. Safe from any thread, and more than once."""
        self._closing.set()
        _close(self._transports, self._proxy)
        if threading.current_thread() is not self._keeper:
            self._keeper.join(JOIN_DEADLINE_S)


def open_connection(
    targets: Sequence[Target], *, end: float, silence_s: float, clock: Callable[[], float] = time.monotonic
) -> Connection:
    """Connect to each of `targets` through the one before it; verify each one's key, then log in.

    Raises:
        HostUnreachable: a name does not resolve, nobody answers, a key is refused, or ours are.
        OperationFailed: the ssh tools on this machine do not work.
    """
    transports: list[paramiko.Transport] = []
    proxy: ProxyProcess | None = None
    try:
        for target in targets:
            hop_end = min(end, clock() + (target.connect_timeout_s or CONNECT_TIMEOUT_S))
            before = transports[-1] if transports else None
            raw: Stream
            if before is None and target.proxy_command is not None:
                raw = proxy = _start_proxy(target, target.proxy_command)
            elif before is None:
                raw = dial(target, hop_end, clock)
            else:
                raw = _jump(before, target, hop_end - clock())
            stream = WatchedStream(raw, silence_s, clock)
            transport = paramiko.Transport(stream, packetizer_class=SignalPacketizer)  # type: ignore[arg-type]
            transports.append(transport)
            _greet(transport, target, hop_end, end, clock, proxy)
    except BaseException:
        _close(transports, proxy)
        raise
    return Connection(targets, transports, stream, proxy, clock)


def _greet(
    transport: paramiko.Transport,
    target: Target,
    hop_end: float,
    end: float,
    clock: Callable[[], float],
    proxy: ProxyProcess | None,
) -> None:
    """Agree on keys, verify the host's, and log in."""
    known = known_hosts.lookup(target.known_as, target.known_hosts_files)
    security = transport.get_security_options()
    security.key_types = known_hosts.preferred_algorithms(known, security.key_types)
    transport.banner_timeout = transport.handshake_timeout = max(0.1, hop_end - clock())
    try:
        transport.start_client(timeout=max(0.1, hop_end - clock()))
        key = transport.get_remote_server_key()
        known_hosts.verify(target, key, known)
        transport.auth_timeout = max(0.1, end - clock())
        authenticate(transport, target)
    except (paramiko.SSHException, EOFError, OSError) as error:
        late = clock() >= hop_end
        why = "it did not answer in time" if late else str(error) or "the connection was closed"
        said = proxy.said() if proxy else None
        raise HostUnreachable(
            f"{target}: no SSH connection", why=f"{why}; its ProxyCommand said: {said}" if said else why
        ) from error


def _start_proxy(target: Target, command: str) -> ProxyProcess:
    try:
        return ProxyProcess(command)
    except OSError as error:
        raise OperationFailed(f"{target}: cannot start its ProxyCommand", why=str(error)) from error


def _jump(before: paramiko.Transport, target: Target, timeout_s: float) -> paramiko.Channel:
    try:
        return before.open_channel(
            "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=max(0.1, timeout_s)
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(f"{target}: its jump host could not connect to it", why=str(error)) from error


def _close(transports: Sequence[paramiko.Transport], proxy: ProxyProcess | None) -> None:
    for transport in reversed(transports):
        transport.close()
        # A transport that was never started does not close what it was given.
        transport.sock.close()
    if proxy is not None:
        proxy.stop()
    for transport in reversed(transports):
        # A thread that was never started cannot be joined; one that closes its own transport must not be.
        if transport.is_alive() and transport is not threading.current_thread():
            transport.join(JOIN_DEADLINE_S)
