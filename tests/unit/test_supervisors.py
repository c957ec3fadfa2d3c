"""What both supervisors promise, here and over SSH, with real processes and a real systemd user manager."""

import dataclasses
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsv4ctl import procfs
from dsv4ctl.errors import HostUnreachable, OperationFailed
from dsv4ctl.hosts.base import Host
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.supervisors.base import Supervisor, UnitHandle, UnitSpec, UnitState, UnitStatus
from dsv4ctl.supervisors.process import ProcessSupervisor
from dsv4ctl.supervisors.systemd import SystemdSupervisor
from dsv4ctl.waiting import wait_until
from tests.sshd import SshNet, processes, ssh_net
from tests.systemd import UserManager

HOST = LocalHost()
SLEEPER = ("/bin/sleep", "300")
IGNORES_TERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
# A child that leaves its session and its parent, as a daemon does; then the parent goes on.
WITH_DAEMON = ("sh", "-c", "setsid sh -c 'sleep 300 & exit' & wait; echo ready; exec sleep 299")


@pytest.fixture(scope="session")
def net_of_manager(
    user_manager: UserManager,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SshNet]:
    """An sshd that lives where the user manager does."""
    with ExitStack() as stack:
        with user_manager.entered():
            started = stack.enter_context(ssh_net(tmp_path_factory.mktemp("ssh")))
        yield started


@pytest.fixture(params=["process", "process-ssh", "systemd", "systemd-ssh"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Host, Supervisor]]:
    """Each of the two supervisors, on this machine and over SSH."""
    kind, _, ssh = request.param.partition("-")
    if kind == "systemd":
        request.getfixturevalue("in_user_manager")
    host: Host = LocalHost()
    if ssh:
        net: SshNet = request.getfixturevalue("net_of_manager" if kind == "systemd" else "net")
        host = SshHost("direct", config_file=str(net.config))
    try:
        if kind == "systemd":
            yield host, SystemdSupervisor(host, str(tmp_path))
        else:
            yield host, ProcessSupervisor(host, str(tmp_path), python=sys.executable, grace_s=1.0)
    finally:
        host.close()


class Units:
    """Starts units, and leaves none behind."""

    def __init__(self, host: Host, supervisor: Supervisor) -> None:
        self.host = host
        self.supervisor = supervisor
        self.started: list[UnitHandle] = []

    def start(self, *argv: str, name: str = "dsv4-test-worker-0", **spec: object) -> UnitHandle:
        handle = self.supervisor.start(UnitSpec(name, argv, **spec))  # type: ignore[arg-type]
        self.started.append(handle)
        return handle

    def reach(self, handle: UnitHandle, state: UnitState) -> UnitStatus:
        """The status once it has that state and, unless it runs, no processes."""

        def reached() -> UnitStatus | None:
            status = self.supervisor.status(handle)
            return status if status.state is state and (state is UnitState.RUNNING or not status.pids) else None

        return wait_until(reached, deadline_s=20, what=f"unit {handle.unit} to be {state}")


@pytest.fixture
def units(place: tuple[Host, Supervisor]) -> Iterator[Units]:
    """Ends what a test started."""
    made = Units(*place)
    yield made
    for handle in made.started:
        made.supervisor.kill(handle)


def has_waiter(lock: int) -> bool:
    """Whether a process waits for the lock on this open file."""
    inode = os.fstat(lock).st_ino
    return any(" -> FLOCK " in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def alive(pid: int) -> bool:
    process = procfs.processes(HOST).get(pid)
    return process is not None and process.alive


def test_a_unit_from_start_to_forgotten(units: Units) -> None:
    supervisor = units.supervisor
    handle = units.start(*SLEEPER)
    status = supervisor.status(handle)
    assert status.state is UnitState.RUNNING
    assert status.main_pid is not None
    assert procfs.cmdline(HOST, status.main_pid) == SLEEPER  # exec'ed, not only forked
    assert status.main_pid in status.pids
    assert status.age_s is not None
    assert 0 <= status.age_s < 20
    assert status.exit_code is None
    assert supervisor.find(handle.unit) == handle
    with pytest.raises(OperationFailed, match="alive"):
        supervisor.forget(handle)
    supervisor.terminate(handle)
    assert units.reach(handle, UnitState.EXITED).exit_code == -signal.SIGTERM
    found = supervisor.find(handle.unit)
    assert found is not None
    assert found.invocation_id == handle.invocation_id
    supervisor.terminate(handle)  # harmless, as is all of the following
    supervisor.kill(handle)
    supervisor.forget(handle)
    supervisor.forget(handle)
    assert supervisor.status(handle).state is UnitState.GONE
    assert supervisor.find(handle.unit) is None


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", -9), ("sleep 0.5; kill -SEGV $$", -11)]
)
def test_how_a_worker_ended_is_known(units: Units, script: str, code: int) -> None:
    handle = units.start("sh", "-c", script)
    assert units.reach(handle, UnitState.EXITED).exit_code == code
    assert units.supervisor.status(handle).main_pid is None


def test_the_environment_is_the_minimum_and_what_was_asked_for(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "leaks")
    odd = {"A_TOKEN": 's3cr$t`"\\', "EMPTY": "", "LINES": "a\nb\tc", "UTF": "zażółć", "PATH": "/usr/bin:/bin"}
    handle = units.start(*SLEEPER, env=odd)
    status = units.supervisor.status(handle)
    assert status.main_pid is not None
    environ = procfs.environ(HOST, status.main_pid)
    assert {name: environ[name] for name in odd} == odd
    own_of_systemd = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID"}
    assert set(environ) - set(odd) - own_of_systemd <= {"HOME", "USER", "LANG", "XDG_RUNTIME_DIR"}
    assert environ["HOME"]
    assert environ["USER"]
    for process in procfs.processes(HOST).values():
        if process.alive and process.pid != 1:
            arguments = Path(f"/proc/{process.pid}/cmdline")
            assert b"s3cr" not in (arguments.read_bytes() if arguments.exists() else b"")


def test_arguments_arrive_as_they_were_given(units: Units, tmp_path: Path) -> None:
    odd = ("", "a b", "$HOME", "${HOME}", "$$", "%n", "%%", "'", '"', "\\", ";", "-x", "a\nb", "*", "ż", "~")
    handle = units.start(sys.executable, "-c", "import time; time.sleep(300)", *odd, cwd=str(tmp_path))
    status = units.supervisor.status(handle)
    assert status.main_pid is not None
    assert procfs.cmdline(HOST, status.main_pid)[3:] == odd
    assert Path(f"/proc/{status.main_pid}/cwd").readlink() == tmp_path


def test_a_start_that_cannot_be_is_an_error_and_leaves_nothing(units: Units, tmp_path: Path) -> None:
    not_executable = tmp_path / "text"
    not_executable.write_text("text")
    for spec in (
        UnitSpec("dsv4-test-bad-0", ("no-such-program",)),
        UnitSpec("dsv4-test-bad-0", ("/no/such/program",)),
        UnitSpec("dsv4-test-bad-0", (str(not_executable),)),
        UnitSpec("dsv4-test-bad-0", SLEEPER, cwd="/no/such/directory"),
    ):
        with pytest.raises(OperationFailed, match="dsv4-test-bad-0"):
            units.supervisor.start(spec)
        assert units.supervisor.find(spec.name) is None
    with pytest.raises(OperationFailed, match="no name for a unit"):
        units.supervisor.start(UnitSpec("../escape", SLEEPER))


def test_a_name_in_use_is_refused_with_the_pid(units: Units) -> None:
    handle = units.start(*SLEEPER)
    main_pid = units.supervisor.status(handle).main_pid
    with pytest.raises(OperationFailed, match=rf"in use.*pid {main_pid}\b"):
        units.supervisor.start(UnitSpec(handle.unit, SLEEPER))
    assert units.supervisor.status(handle).main_pid == main_pid
    units.supervisor.kill(handle)
    again = units.start(*SLEEPER)  # an ended unit that nobody forgot is no obstacle
    assert units.supervisor.status(again).state is UnitState.RUNNING
    # What became of the first start may still be on record; that its name is another's now is what must be known.
    assert units.supervisor.status(handle).state in (UnitState.FOREIGN, UnitState.EXITED)
    assert units.supervisor.status(handle).pids == ()


def test_of_concurrent_starts_one_wins(units: Units) -> None:
    supervisor = units.supervisor

    def attempt(_: int) -> UnitHandle | OperationFailed:
        try:
            return supervisor.start(UnitSpec("dsv4-test-race-0", SLEEPER))
        except OperationFailed as error:
            return error

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(attempt, range(6)))
    won = [result for result in results if isinstance(result, UnitHandle)]
    units.started += won
    assert len(won) == 1
    assert all("in use" in str(result) for result in results if result not in won)
    assert supervisor.status(won[0]).state is UnitState.RUNNING


def test_a_worker_that_ignores_sigterm_is_ended_by_kill(units: Units) -> None:
    handle = units.start(*IGNORES_TERM)
    read_line(units, handle, "ready")
    units.supervisor.terminate(handle)
    units.supervisor.terminate(handle)
    assert units.supervisor.status(handle).state is UnitState.RUNNING
    units.supervisor.kill(handle)
    assert units.supervisor.status(handle).exit_code == -signal.SIGKILL
    assert units.supervisor.status(handle).pids == ()


def test_what_a_dead_worker_leaves_behind_is_ended(units: Units) -> None:
    handle = units.start("sh", "-c", "trap '' TERM; (while :; do sleep 0.1; done) & echo ready; exec sleep 300")
    read_line(units, handle, "ready")
    status = units.supervisor.status(handle)
    assert status.main_pid is not None
    os.kill(status.main_pid, signal.SIGKILL)
    assert units.reach(handle, UnitState.EXITED).exit_code == -signal.SIGKILL
    assert not any(alive(pid) for pid in status.pids)


def test_a_worker_outlives_a_child_that_is_killed(units: Units) -> None:
    handle = units.start("sh", "-c", "sleep 300 & echo ready; exec sleep 299")
    read_line(units, handle, "ready")
    status = units.supervisor.status(handle)
    child = next(pid for pid in status.pids if procfs.cmdline(HOST, pid) == ("sleep", "300"))
    os.kill(child, signal.SIGKILL)
    assert units.supervisor.status(handle).state is UnitState.RUNNING
    assert child not in units.supervisor.status(handle).pids


def test_a_daemon_of_the_worker_belongs_to_the_unit(units: Units) -> None:
    handle = units.start(*WITH_DAEMON)
    read_line(units, handle, "ready")
    status = units.supervisor.status(handle)
    daemon = next(pid for pid in status.pids if procfs.cmdline(HOST, pid) == ("sleep", "300"))
    assert os.getsid(daemon) != os.getsid(status.main_pid or 0)
    units.supervisor.kill(handle)
    assert not alive(daemon)


def test_a_unit_that_forks_without_end_is_killed_whole(units: Units) -> None:
    forking = """
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(300)
    time.sleep(0.002)
"""
    handle = units.start(sys.executable, "-c", forking)
    wait_until(lambda: len(units.supervisor.status(handle).pids) > 20, deadline_s=20, what="twenty daemons")
    units.supervisor.kill(handle)
    assert units.supervisor.status(handle).pids == ()


def test_a_reboot_is_seen_and_nothing_is_signalled(units: Units) -> None:
    handle = units.start(*SLEEPER)
    before = dataclasses.replace(handle, boot_id="00000000-0000-0000-0000-000000000000")
    assert units.supervisor.status(before).state is UnitState.REBOOTED
    units.supervisor.terminate(before)
    units.supervisor.kill(before)
    assert units.supervisor.status(handle).state is UnitState.RUNNING


def test_a_unit_of_another_start_is_foreign_and_is_not_signalled(units: Units) -> None:
    handle = units.start(*SLEEPER)
    other = dataclasses.replace(
        handle, start_ticks=handle.start_ticks - 1, invocation_id=handle.invocation_id and "0" * 32
    )
    assert units.supervisor.status(other).state is UnitState.FOREIGN
    units.supervisor.terminate(other)
    units.supervisor.kill(other)
    units.supervisor.forget(other)
    assert units.supervisor.status(handle).state is UnitState.RUNNING


def test_output_can_be_followed(units: Units) -> None:
    handle = units.start("sh", "-c", "echo first; echo second >&2; read line </dev/null; exec sleep 300")
    assert read_line(units, handle, "second")


def read_line(units: Units, handle: UnitHandle, wanted: str) -> str:
    """The line of the unit's log, once it is there."""
    with units.host.follow(units.supervisor.log(handle.unit), tail_lines=10) as stream:
        return wait_until(
            lambda: line if (line := stream.readline(0.2)) == wanted else None, deadline_s=10, what=f"{wanted!r}"
        )


@pytest.mark.parametrize("place", ["process-ssh", "systemd-ssh"], indirect=True)
def test_a_unit_outlives_the_connection_it_was_started_over(units: Units, request: pytest.FixtureRequest) -> None:
    net: SshNet = request.getfixturevalue(
        "net" if isinstance(units.supervisor, ProcessSupervisor) else "net_of_manager"
    )
    handle = units.start("sh", "-c", "while :; do echo tick; sleep 0.1; done")
    before = units.supervisor.status(handle)
    with units.host.follow(units.supervisor.log(handle.unit), tail_lines=1) as stream:
        wait_until(lambda: stream.readline(0.2), deadline_s=10, what="a line of the log")
        logins = net.target.accepted()
        net.target.cut()
        with pytest.raises(HostUnreachable):
            wait_until(lambda: stream.readline(0.2) is None or None, deadline_s=20, what="the loss")
    after = units.supervisor.status(handle)
    assert net.target.accepted() > logins
    assert (after.state, after.main_pid) == (UnitState.RUNNING, before.main_pid)
    read_line(units, handle, "tick")


@pytest.mark.parametrize("place", ["process-ssh"], indirect=True)
def test_a_start_that_loses_its_connection_leaves_no_unit_that_nobody_knows(
    units: Units, net: SshNet, tmp_path: Path
) -> None:
    name = "dsv4-test-lost-0"
    assert units.supervisor.find(name) is None
    (tmp_path / "units").mkdir(exist_ok=True)
    with (tmp_path / "units" / ".lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start = pool.submit(units.supervisor.start, UnitSpec(name, SLEEPER))
        # Not sooner: the host gets the shepherd's program when a first try has failed for lack of it, and a connection
        # that is lost before the second is opened again.
        wait_until(lambda: has_waiter(lock.fileno()), deadline_s=20, what="the shepherd to wait for the lock")
        net.target.cut()
        with pytest.raises(HostUnreachable):
            start.result(20)
        # The guard sees the loss by the end of sshd's process, or ends the starter by its own deadline, 22 s.
        wait_until(lambda: len(processes(str(tmp_path), ".pyz", "start")) == 1, deadline_s=30, what="the starter's end")
        assert units.supervisor.find(name) is None
    wait_until(lambda: not processes(str(tmp_path), ".pyz", "start"), deadline_s=10, what="the shepherd's end")
    assert units.supervisor.find(name) is None
