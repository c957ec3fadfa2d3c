"""Connections that break, and hosts that misbehave: what is noticed, how soon, and what is left behind."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv4ctl.errors import DeadlineExceeded, HostUnreachable, OperationFailed
from dsv4ctl.hosts.base import Completed, FileLog
from dsv4ctl.hosts.connection import ConnectionLost
from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.hosts.ssh_config import CONFIG_ENV
from dsv4ctl.waiting import wait_until
from tests.relay import Relay, relay
from tests.sshd import Sshd, SshNet, processes, public

# Shorter than what people get, so that the tests do not take that long.
SILENCE_S = 2.0
NOTICED_S = SILENCE_S * 4 / 3 + 2


@pytest.fixture
def wire(net: SshNet) -> Iterator[Relay]:
    """What lies between us and the host."""
    with relay(net.target.port) as started:
        yield started


@pytest.fixture
def far(net: SshNet, wire: Relay, tmp_path: Path) -> Iterator[SshHost]:
    """The host at the other end of the wire."""
    config = net.write_config(
        f"Host far\n  Port {wire.port}\n  HostKeyAlias [127.0.0.1]:{net.target.port}\n  ConnectTimeout 2\n",
        name=f"config-{tmp_path.name}",
    )
    host = SshHost("far", config_file=str(config), silence_s=SILENCE_S)
    yield host
    host.close()


def unique() -> str:
    """A number that no other command line has."""
    return f"7{time.monotonic_ns() % 10**9:09d}"


class Call(threading.Thread):
    """A call that is under way while the test breaks something."""

    def __init__(self, host: SshHost, argv: list[str], *, stdin: bytes = b"", deadline_s: float = 60) -> None:
        super().__init__()
        self._call: Callable[[], Completed] = lambda: host.run(argv, stdin=stdin, deadline_s=deadline_s)
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except (HostUnreachable, OperationFailed, DeadlineExceeded) as error:
            self.error = error
        self.ended_at = time.monotonic()


def is_running(mark: str) -> bool:
    return bool(processes("sleep", mark))


@pytest.mark.parametrize("stdin", [b"", b"input"])
def test_a_server_that_dies_in_the_middle(remote: SshHost, net: SshNet, stdin: bytes, tmp_path: Path) -> None:
    """The call fails, what it started dies, it is not sent again, and the next call works."""
    mark = unique()
    call = Call(remote, ["sh", "-c", f"echo ran >>{tmp_path}/runs; sleep {mark}"], stdin=stdin)
    wait_until(lambda: is_running(mark), deadline_s=10, what="the command to run")
    net.target.cut()
    call.join(5)
    assert isinstance(call.error, ConnectionLost)
    assert "echo ran" in str(call.error)
    assert remote.run(["echo", "again"], deadline_s=10).text == "again\n"
    wait_until(lambda: not processes(mark), deadline_s=5, what="the command to end")
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_loss_between_calls_is_repaired_unseen(far: SshHost, wire: Relay) -> None:
    for _ in range(3):
        assert far.run(["echo", "here"], deadline_s=10).text == "here\n"
        wire.cut()


def test_a_wire_that_goes_dead_is_noticed(far: SshHost, wire: Relay, tmp_path: Path) -> None:
    """Nothing arrives any more and nothing says so: every kind of call ends soon, and afterwards all is well."""
    mark = unique()
    log = tmp_path / "log"
    log.write_text("1\n")
    with far.follow(FileLog(str(log)), tail_lines=1) as stream, far.http(timeout_s=60) as client:
        assert stream.readline(10) == "1"
        call = Call(far, ["sleep", mark])
        wait_until(lambda: is_running(mark), deadline_s=10, what="the command to run")
        dead_since = time.monotonic()
        wire.go_deaf()
        with pytest.raises(HostUnreachable) as caught:
            stream.readline(60)
        assert "nothing came" in str(caught.value)
        assert time.monotonic() - dead_since < NOTICED_S
        call.join(2)
        assert isinstance(call.error, ConnectionLost)
        assert call.ended_at - dead_since < NOTICED_S
        with pytest.raises(HostUnreachable, match="far"):
            far.run(["true"], deadline_s=10)
        with pytest.raises(Exception, match="far") as failed:
            client.get("http://127.0.0.1:9/")
        assert type(failed.value).__name__ == "ConnectError"
    wire.hear()
    assert far.run(["echo", "back"], deadline_s=20).text == "back\n"
    wait_until(lambda: not processes(mark) and not processes(str(log)), deadline_s=10, what="the rest to end")


def test_a_dead_wire_stops_a_sender_too(far: SshHost, wire: Relay) -> None:
    """With a full send buffer nobody reads any more; the liveness check must not depend on a reader."""
    mark = unique()
    call = Call(far, ["sh", "-c", f"sleep {mark}"], stdin=b"x" * 60_000_000)
    wait_until(lambda: is_running(mark), deadline_s=10, what="the command to run")
    wire.go_deaf()
    call.join(NOTICED_S + 1)
    assert isinstance(call.error, ConnectionLost)


def test_a_slow_consumer_is_not_a_dead_wire(far: SshHost, wire: Relay, tmp_path: Path) -> None:
    """A full window, and nobody who reads for longer than the liveness bound."""
    log = tmp_path / "log"
    log.write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 80_000)
    with far.follow(FileLog(str(log)), tail_lines=80_001) as stream:
        assert stream.readline(10) == "x" * 99
        threading.Event().wait(SILENCE_S * 2)
        assert far.run(["echo", "alive"], deadline_s=10).text == "alive\n"
        for _ in range(80_000):
            assert stream.readline(10) == "y" * 99


def test_cutting_the_connection_ends_the_follower(remote: SshHost, net: SshNet, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1\n")
    with remote.follow(FileLog(str(log)), tail_lines=1) as stream:
        assert stream.readline(10) == "1"
        net.target.cut()
        with pytest.raises(HostUnreachable):
            stream.readline(10)
        wait_until(lambda: not processes(str(log)), deadline_s=5, what="the follower to end")
    with remote.follow(FileLog(str(log)), tail_lines=1) as stream:
        assert stream.readline(10) == "1"


@pytest.mark.parametrize("name", ["local", "direct", "via-hop"])
def test_our_own_death_ends_the_follower(name: str, net: SshNet, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1\n")
    script = (
        "import sys; from dsv4ctl.hosts.connect import open_host; from dsv4ctl.hosts.base import FileLog\n"
        "stream = open_host(sys.argv[1]).follow(FileLog(sys.argv[2]), tail_lines=1)\n"
        "print(stream.readline(10), flush=True); stream.readline(60)"
    )
    argv = [sys.executable, "-c", script, name, str(log)]
    us = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, CONFIG_ENV: str(net.config)})
    with us:
        assert us.stdout is not None
        assert us.stdout.readline() == b"1\n"
        us.kill()
    wait_until(lambda: not processes(str(log)), deadline_s=5, what="the follower to end")


def test_closing_the_host_ends_what_runs(remote: SshHost, tmp_path: Path) -> None:
    mark = unique()
    call = Call(remote, ["sleep", mark])
    wait_until(lambda: is_running(mark), deadline_s=10, what="the command to run")
    remote.close()
    call.join(5)
    assert isinstance(call.error, HostUnreachable)
    assert "closed" in str(call.error)
    wait_until(lambda: not processes(mark), deadline_s=5, what="the command to end")
    with pytest.raises(OperationFailed, match="closed"):
        remote.run(["true"], deadline_s=5)


def test_a_cut_write_leaves_the_old_file(far: SshHost, wire: Relay, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    errors: list[BaseException] = []

    def write() -> None:
        try:
            far.write(str(path), b"x" * 100_000_000, deadline_s=30)
        except HostUnreachable as error:
            errors.append(error)

    far.run(["true"], deadline_s=10)
    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: len(list(tmp_path.iterdir())) > 1, deadline_s=10, what="the write to begin", interval_s=0.005)
    wire.cut()
    writer.join(10)
    assert len(errors) == 1
    wait_until(lambda: [p.name for p in tmp_path.iterdir()] == ["file"], deadline_s=5, what="the rest to be removed")
    assert path.read_text() == "old"


def test_one_connection_carries_everything(remote: SshHost, net: SshNet, tmp_path: Path) -> None:
    before = net.target.accepted()
    remote.run(["true"], deadline_s=10)
    remote.write(str(tmp_path / "file"), b"1\n")
    remote.read(str(tmp_path / "file"))
    with remote.follow(FileLog(str(tmp_path / "file")), tail_lines=1) as stream, remote.http(timeout_s=5) as client:
        assert stream.readline(10) == "1"
        with pytest.raises(Exception, match="no connection"):
            client.get("http://127.0.0.1:1/")
        remote.run(["true"], deadline_s=10)
    assert net.target.accepted() == before + 1


@pytest.fixture
def strict(net: SshNet, tmp_path: Path) -> Iterator[tuple[Sshd, SshHost]]:
    """A server with few sessions and no forwarding, and a login shell's start file that talks."""
    options = ("MaxSessions 2", "AllowTcpForwarding no")
    server = Sshd(tmp_path / "strict", options=options).start()
    server.authorized_keys.write_text(public(net.user_key) + "\n")
    (server.home / ".bashrc").write_text("echo welcome; echo to you >&2\n")
    known = tmp_path / "known_hosts"
    known.write_text(server.known_hosts_line)
    config = net.write_config(
        f"Host strict\n  Port {server.port}\n  UserKnownHostsFile {known}\n", name=f"config-{tmp_path.name}"
    )
    host = SshHost("strict", config_file=str(config))
    yield server, host
    host.close()
    server.stop()


def test_few_sessions_are_shared(strict: tuple[Sshd, SshHost], tmp_path: Path) -> None:
    _, host = strict
    calls = [Call(host, ["sh", "-c", f"sleep 0.1; echo {number} >{tmp_path}/{number}"]) for number in range(10)]
    for call in calls:
        call.join(20)
        assert call.error is None
    assert sorted(p.read_text() for p in tmp_path.iterdir() if p.name.isdigit()) == [f"{n}\n" for n in range(10)]


def test_what_start_files_print_is_left_out(strict: tuple[Sshd, SshHost], tmp_path: Path) -> None:
    _, host = strict
    assert host.run(["echo", "out"], deadline_s=10).stdout == b"out\n"
    host.write(str(tmp_path / "file"), b"1\n")
    assert host.read(str(tmp_path / "file")) == b"1\n"
    with host.follow(FileLog(str(tmp_path / "file")), tail_lines=5) as stream:
        assert stream.readline(10) == "1"


def test_forwarding_that_is_not_allowed_is_named(strict: tuple[Sshd, SshHost]) -> None:
    _, host = strict
    with host.http(timeout_s=10) as client, pytest.raises(Exception, match="sshd does not allow it"):
        client.get("http://127.0.0.1:80/")


def test_a_forced_command_is_named(strict: tuple[Sshd, SshHost], net: SshNet) -> None:
    server, host = strict
    server.authorized_keys.write_text(f'command="echo go away" {public(net.user_key)}\n')
    with pytest.raises(OperationFailed) as caught:
        host.run(["true"], deadline_s=10)
    assert "did not run" in str(caught.value)
    assert "go away" in str(caught.value)
