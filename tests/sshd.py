"""A real sshd on the loopback, for tests: own keys, own configuration, and the ssh_config of a person who uses it."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsv4ctl.hosts.guard import Input, guarded
from dsv4ctl.waiting import wait_until

LOOPBACK = "127.0.0.1"


def user() -> str:
    """Who we are, and so who logs in."""
    return pwd.getpwuid(os.getuid()).pw_name


def sshd_path() -> str | None:
    """The server, which is not on everybody's PATH."""
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair; returns the private key's path."""
    # The smallest size that sshd takes; a longer one costs seconds.
    size = ["-b", "2048"] if kind == "rsa" else []
    argv = ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, timeout=30)
    return path


def public(key: Path) -> str:
    """Type and base64 of a public key."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def fingerprint(key: Path) -> str:
    """As ssh-keygen shows it."""
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], check=True, capture_output=True, text=True, timeout=30)
    return shown.stdout.split()[1]


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def listening(port: int) -> bool:
    """Whether something accepts connections on a port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def processes(*words: str) -> list[int]:
    """Pids of the processes whose command line has all of the words, zombies and ourselves left out."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        # A process may go at any moment.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            line = (proc / "cmdline").read_bytes().decode(errors="replace")
            if int(proc.name) != os.getpid() and line and all(word in line for word in words):
                found.append(int(proc.name))
    return found


def children(pid: int) -> list[int]:
    """Pids of the direct children."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@dataclass
class Sshd:
    """One server. `directory` holds its keys, configuration and log."""

    directory: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def host_key(self) -> Path:
        return self.directory / "host_key"

    @property
    def authorized_keys(self) -> Path:
        return self.directory / "authorized_keys"

    @property
    def home(self) -> Path:
        """HOME of whoever logs in here."""
        return self.directory / "home"

    @property
    def known_hosts_line(self) -> str:
        return f"[{LOOPBACK}]:{self.port} {public(self.host_key)}\n"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def start(self) -> "Sshd":
        """Start it, and wait until it accepts connections."""
        server = sshd_path()
        assert server, "no sshd (Debian: openssh-server)"
        if os.getuid() == 0:
            # sshd wants its privilege separation directory; the system's service would make it.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.host_key.exists():
            keygen(self.host_key)
        (self.directory / "sshd_config").write_text(
            "\n".join(
                [
                    *self.options,
                    f"ListenAddress {LOOPBACK}:{self.port}",
                    f"HostKey {self.host_key}",
                    f"AuthorizedKeysFile {self.authorized_keys}",
                    # A home of its own: what the start files of whoever runs the tests do is not under test.
                    f"SetEnv HOME={self.home}",
                    "PidFile none",
                    "AuthenticationMethods publickey",
                    "PermitRootLogin prohibit-password",
                    "StrictModes no",
                    "UsePAM no",
                    "MaxStartups 100",
                    "LogLevel VERBOSE",
                ]
            )
            + "\n"
        )
        # Under guard, so that it goes when the tests are killed.
        argv = [server, "-D", "-E", str(self.directory / "log"), "-f", str(self.directory / "sshd_config")]
        self.process = subprocess.Popen(
            guarded(argv, lease_s=0, held=Input.HELD),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.process.wait(0.1)
        except subprocess.TimeoutExpired:
            wait_until(lambda: listening(self.port), deadline_s=10, what=f"sshd on port {self.port}", interval_s=0.02)
            return self
        raise AssertionError(self.log)

    def stop(self) -> None:
        """End the server and every connection of it."""
        if self.process is None:
            return
        self.cut()
        with self.process:
            self.process.terminate()
            self.process.wait(10)
        self.process = None

    def connections(self) -> list[int]:
        """The processes that serve a connection each."""
        return children(self.process.pid) if self.process else []

    def cut(self) -> None:
        """Kill what serves the connections that are open now, as a crash would; the server stays."""
        for pid in self.connections():
            for victim in (*children(pid), pid):
                command = Path(f"/proc/{victim}/cmdline")
                # A privilege separated child may hold the connection. Commands of its sessions are not killed here.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if command.read_bytes().startswith(b"sshd"):
                        os.kill(victim, 9)

    def accepted(self) -> int:
        """How many logins succeeded so far."""
        return self.log.count("Accepted publickey for")


@dataclass
class SshNet:
    """Two servers and the configuration of a person.

    `direct` is a name for `target`, `via-hop` one for the same server that leads through `hop`, and `hop` is itself.
    """

    directory: Path
    target: Sshd
    hop: Sshd
    user_key: Path

    @property
    def config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def write_config(self, extra: str = "", name: str = "ssh_config") -> Path:
        """The person's configuration, with `extra` before everything else (ssh takes the first value it sees)."""
        common = (
            f"Host *\n  HostName {LOOPBACK}\n  User {user()}\n  IdentityFile {self.user_key}\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none\n  IdentityAgent none\n"
        )
        path = self.directory / name
        path.write_text(
            f"{extra}\n"
            f"Host direct\n  Port {self.target.port}\n"
            f"Host hop\n  Port {self.hop.port}\n"
            f"Host via-hop\n  Port {self.target.port}\n  ProxyJump hop\n{common}"
        )
        return path


@contextlib.contextmanager
def ssh_net(directory: Path) -> Iterator[SshNet]:
    """Start two servers that know one key, and write the configuration and known_hosts of its owner."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = keygen(directory / "user_key")
    target, hop = Sshd(directory / "target"), Sshd(directory / "hop")
    net = SshNet(directory, target, hop, key)
    try:
        for server in (target, hop):
            server.start()
            server.authorized_keys.write_text(public(key) + "\n")
        net.known_hosts.write_text(target.known_hosts_line + hop.known_hosts_line)
        net.write_config()
        yield net
    finally:
        target.stop()
        hop.stop()
