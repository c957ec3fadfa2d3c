"""The shepherd: what survives whose death, how it is found again, and what happens to the log."""

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv4ctl import procfs
from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec, UnitState
from dsv4ctl.supervisors.process import ProcessSupervisor, program
from dsv4ctl.waiting import wait_until

HOST = LocalHost()
UNIT = "dsv4-test-prefill-0"
SLEEPER = ("sleep", "300")
DAEMON_BESIDE = ("sh", "-c", "setsid sh -c 'sleep 301 & exit' & wait; echo ready; exec sleep 300")


class Started:
    """A state directory with its supervisor, and one unit after another in it."""

    def __init__(self, state: Path, **options: int | float) -> None:
        self.state = state
        self.supervisor = ProcessSupervisor(HOST, str(state), python=sys.executable, **options)  # type: ignore[arg-type]
        self.handles: list[UnitHandle] = []

    def start(self, *argv: str) -> UnitHandle:
        handle = self.supervisor.start(UnitSpec(UNIT, argv))
        self.handles.append(handle)
        return handle

    @property
    def record(self) -> Path:
        return self.state / "units" / f"{UNIT}.json"

    @property
    def log(self) -> Path:
        return self.state / "logs" / f"{UNIT}.log"

    def main_pid(self, handle: UnitHandle) -> int:
        pid = self.supervisor.status(handle).main_pid
        assert pid is not None
        return pid

    def said(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), deadline_s=10, what=f"{text!r} in the log")

    def recorded(self, pid: int) -> None:
        """Returns when the shepherd has written down that process."""
        wait_until(
            lambda: pid in [member for member, _ in json.loads(self.record.read_text())["members"]],
            deadline_s=15,
            what=f"pid {pid} in the record",
        )


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path / "state", grace_s=1.0)
    yield made
    for handle in made.handles:
        made.supervisor.kill(handle)


def alive(pid: int) -> bool:
    process = procfs.processes(HOST).get(pid)
    return process is not None and process.alive


def gone(pid: int) -> None:
    wait_until(lambda: not alive(pid), deadline_s=10, what=f"the end of pid {pid}")


def child_of(unit: Started, handle: UnitHandle, *argv: str) -> int:
    """The process of the unit with these arguments."""
    pids = unit.supervisor.status(handle).pids
    return next(pid for pid in pids if procfs.cmdline(HOST, pid) == argv)


def test_the_shepherd_leads_a_session_of_its_own_and_so_does_the_worker(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    table = procfs.processes(HOST)
    assert table[handle.pid].session == handle.pid != os.getsid(0)
    assert table[handle.pid].start_ticks == handle.start_ticks
    assert (table[worker].session, table[worker].pgid, table[worker].ppid) == (worker, worker, handle.pid)
    assert set(unit.supervisor.status(handle).pids) == {handle.pid, worker}


def test_the_worker_has_no_open_file_of_ours_and_no_blocked_signal(unit: Started) -> None:
    worker = unit.main_pid(unit.start(*SLEEPER))
    open_files = {link.name: str(link.readlink()) for link in Path(f"/proc/{worker}/fd").iterdir()}
    assert open_files == {"0": "/dev/null", "1": str(unit.log), "2": str(unit.log)}
    status = Path(f"/proc/{worker}/status").read_text().splitlines()
    masks = dict(line.split(":\t") for line in status if line.startswith(("SigBlk", "SigIgn")))
    assert int(masks["SigBlk"], 16) == 0
    assert not int(masks["SigIgn"], 16) & (1 << (signal.SIGHUP - 1))


def test_a_hangup_or_an_interrupt_ends_nothing(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGHUP)
    os.kill(handle.pid, signal.SIGINT)
    os.kill(handle.pid, signal.SIGTERM)  # this one is passed on: what it did shows that the others were taken before
    gone(worker)
    gone(handle.pid)
    assert unit.supervisor.status(handle).exit_code == -signal.SIGTERM


STARTER = """
import sys, time
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.supervisors.base import UnitSpec
from dsv4ctl.supervisors.process import ProcessSupervisor
ProcessSupervisor(LocalHost(), sys.argv[1], python=sys.executable).start(UnitSpec(sys.argv[2], ("sleep", "300")))
print("started", flush=True)
time.sleep(300)
"""


def test_a_unit_outlives_who_started_it(unit: Started) -> None:
    argv = [sys.executable, "-c", STARTER, str(unit.state), UNIT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"started\n"
        os.killpg(starter.pid, signal.SIGKILL)
    handle = unit.supervisor.find(UNIT)
    assert handle is not None
    unit.handles.append(handle)
    assert unit.supervisor.status(handle).state is UnitState.RUNNING


def test_the_worker_outlives_its_shepherd_and_is_still_ours(unit: Started) -> None:
    handle = unit.start("sh", "-c", "while :; do echo tick; sleep 0.1; done")
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGKILL)
    gone(handle.pid)
    size = unit.log.stat().st_size
    wait_until(lambda: unit.log.stat().st_size > size, deadline_s=5, what="more output")
    status = unit.supervisor.status(handle)
    assert (status.state, status.main_pid) == (UnitState.RUNNING, worker)
    with pytest.raises(OperationFailed, match=f"in use.*pid {worker}"):
        unit.start(*SLEEPER)
    unit.supervisor.terminate(handle)
    gone(worker)
    assert unit.supervisor.status(handle).state is UnitState.GONE  # nobody was there to see how it ended
    assert unit.supervisor.status(handle).exit_code is None


def test_a_daemon_is_found_after_the_death_of_shepherd_and_worker(unit: Started) -> None:
    handle = unit.start(*DAEMON_BESIDE)
    unit.said("ready")
    daemon = child_of(unit, handle, "sleep", "301")
    unit.recorded(daemon)
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    gone(worker)
    status = unit.supervisor.status(handle)
    assert (status.state, status.pids) == (UnitState.GONE, (daemon,))
    unit.supervisor.kill(handle)
    assert not alive(daemon)


def test_a_session_that_is_known_brings_in_who_came_later(unit: Started) -> None:
    """Forked after the last look of a shepherd that was killed, and orphaned: known by its session alone."""
    handle = unit.start("sh", "-c", "trap : USR1; echo ready; while :; do sleep 301 & wait; (sleep 302 &); done")
    unit.said("ready")
    unit.recorded(child_of(unit, handle, "sleep", "301"))
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGKILL)
    gone(handle.pid)
    os.kill(worker, signal.SIGUSR1)
    late = wait_until(lambda: pid_of("sleep", "302"), deadline_s=5, what="the late one")
    os.kill(worker, signal.SIGKILL)
    gone(worker)
    assert late in unit.supervisor.status(handle).pids
    unit.supervisor.kill(handle)
    assert not alive(late)


def pid_of(*argv: str) -> int | None:
    for pid, process in procfs.processes(HOST).items():
        with suppress(FileNotFoundError, PermissionError):
            if process.alive and procfs.cmdline(HOST, pid) == argv:
                return pid
    return None


def test_a_stopped_shepherd_does_not_keep_a_unit_from_being_killed(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGSTOP)
    unit.supervisor.kill(handle)
    assert not alive(handle.pid)
    assert not alive(worker)
    assert unit.supervisor.status(handle).state is UnitState.GONE


def test_a_stopped_worker_outlives_its_shepherd_too(unit: Started) -> None:
    """The kernel hangs up on stopped process groups that are orphaned; the worker's is in a session of its own."""
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    os.kill(worker, signal.SIGSTOP)
    os.kill(handle.pid, signal.SIGKILL)
    gone(handle.pid)
    assert procfs.processes(HOST)[worker].state == "T"


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is none of ours."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("recorded", [False, True])
def test_a_reused_pid_is_never_signalled(unit: Started, stranger: "subprocess.Popen[bytes]", recorded: bool) -> None:
    ticks, boot = procfs.processes(HOST)[stranger.pid].start_ticks, procfs.boot_id(HOST)
    handle = UnitHandle("process", UNIT, stranger.pid, ticks - 1, boot)
    if recorded:
        stale = [stranger.pid, ticks - 1]
        record = {"unit": UNIT, "shepherd": stale, "boot_id": boot, "worker": stale, "members": [stale]}
        unit.record.parent.mkdir(parents=True)
        unit.record.write_text(json.dumps(record))
    assert unit.supervisor.status(handle).state is (UnitState.GONE if recorded else UnitState.FOREIGN)
    assert unit.supervisor.status(handle).pids == ()
    unit.supervisor.terminate(handle)
    unit.supervisor.kill(handle)
    unit.supervisor.forget(handle)
    assert stranger.poll() is None


def test_a_record_from_before_a_reboot_is_no_obstacle(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    os.kill(handle.pid, signal.SIGKILL)
    record = json.loads(unit.record.read_text())
    unit.record.write_text(json.dumps({**record, "boot_id": "of-another-boot"}))
    before = dataclasses.replace(handle, boot_id="of-another-boot")
    assert unit.supervisor.find(UNIT) == before
    assert unit.supervisor.status(before).state is UnitState.REBOOTED
    unit.supervisor.kill(before)
    assert alive(worker)  # another boot's pids say nothing about this one's
    assert unit.supervisor.status(unit.start(*SLEEPER)).state is UnitState.RUNNING
    os.kill(worker, signal.SIGKILL)


def test_a_record_that_was_removed_comes_back(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    unit.record.unlink()
    status = unit.supervisor.status(handle)
    assert (status.state, status.main_pid) == (UnitState.RUNNING, None)  # running, and which is the worker: unknown
    assert set(status.pids) == {handle.pid, worker}
    wait_until(unit.record.exists, deadline_s=10, what="the record")
    assert unit.main_pid(handle) == worker


def test_without_its_record_a_unit_is_still_ended_whole(unit: Started) -> None:
    handle = unit.start(*SLEEPER)
    worker = unit.main_pid(handle)
    unit.record.unlink()
    unit.supervisor.kill(handle)
    assert not alive(worker)
    assert not alive(handle.pid)


def test_leftovers_have_their_grace_while_the_unit_counts_as_ended(unit: Started) -> None:
    handle = unit.start(
        "sh", "-c", "sh -c 'trap \"sleep 0.5; echo bye; exit\" TERM; echo ready; sleep 300 & wait' & wait"
    )
    unit.said("ready")
    os.kill(unit.main_pid(handle), signal.SIGKILL)
    status = wait_until(
        lambda: now if (now := unit.supervisor.status(handle)).state is UnitState.EXITED else None,
        deadline_s=5,
        what="the end of the worker",
    )
    assert handle.pid in status.pids
    with pytest.raises(OperationFailed, match="alive"):
        unit.supervisor.forget(handle)
    gone(handle.pid)
    assert "bye" in unit.log.read_text()
    assert unit.supervisor.status(handle).pids == ()


def test_a_start_whose_starter_has_died_is_undone(unit: Started) -> None:
    unit.state.mkdir(exist_ok=True)
    archive = unit.state / "shepherd.pyz"
    archive.write_bytes(program())
    request: dict[str, object] = {
        "state_dir": str(unit.state),
        "unit": UNIT,
        "argv": ["sleep", "303"],
        "env": {},
        "cwd": None,
    }
    request |= {"log": str(unit.log), "log_limit_bytes": 1 << 20, "log_keep": 1, "grace_s": 1}
    (unit.state / "units").mkdir()
    with (unit.state / "units" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the shepherd waits here
        with subprocess.Popen([sys.executable, "-I", "-S", archive, "start"], stdin=subprocess.PIPE) as starter:
            assert starter.stdin is not None
            starter.stdin.write(json.dumps(request).encode())
            starter.stdin.close()
            shepherd = wait_until(
                lambda: next(iter(procfs.descendants(procfs.processes(HOST), [starter.pid])), None),
                deadline_s=5,
                what="the shepherd",
            )
            starter.kill()
    gone(shepherd)
    assert "whoever asked for this start is gone" in unit.log.read_text()
    assert pid_of("sleep", "303") is None
    assert unit.supervisor.find(UNIT) is None


def test_where_nothing_can_be_written_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    supervisor = ProcessSupervisor(HOST, str(tmp_path), python=sys.executable)
    with pytest.raises(OperationFailed, match=f"start of unit {UNIT}.*{tmp_path}/logs"):
        supervisor.start(UnitSpec(UNIT, ("sleep", "304")))  # other tests, beside this one, have sleepers of their own
    assert supervisor.find(UNIT) is None
    assert pid_of("sleep", "304") is None


def test_a_host_without_that_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperationFailed, match="no-such-python"):
        ProcessSupervisor(HOST, str(tmp_path), python="no-such-python").start(UnitSpec(UNIT, SLEEPER))


def test_the_program_is_the_same_bytes_for_the_same_source() -> None:
    assert program() == program()


def test_the_log_of_the_start_before_is_kept(unit: Started) -> None:
    for number in range(6):
        handle = unit.start("echo", f"start {number}")
        gone(handle.pid)
    logs = {path.name.removeprefix(UNIT): path.read_text().strip() for path in unit.log.parent.iterdir()}
    assert logs == {".log": "start 5", ".log.1": "start 4", ".log.2": "start 3", ".log.3": "start 2"}


# Writes all it can for a while, a line a call, and then tells how many lines it wrote.
WRITES_FOR_S = 2
WRITER = f"""
import os, time
end, number = time.monotonic() + {WRITES_FOR_S}, 0
while time.monotonic() < end:
    os.write(1, b"line %09d of a worker that says as much as it can\\n" % number)
    number += 1
os.write(1, b"wrote %d\\n" % number)
"""


@dataclass(frozen=True)
class Flood:
    """What is left of the output of a worker that wrote at full speed: the numbers of the lines, oldest first."""

    wrote: int
    found: list[int]
    rotations: int


def flood(state: Path) -> Flood:
    unit = Started(state, log_limit_bytes=2 << 20, log_keep=50)
    handle = unit.start(sys.executable, "-c", WRITER)
    wait_until(lambda: not alive(handle.pid), deadline_s=30, what="the end of the unit")
    older = sorted(unit.log.parent.glob("*.log.*"), key=lambda path: -int(path.suffix[1:]))
    lines = b"".join(path.read_bytes() for path in [*older, unit.log]).splitlines()
    # A line of which only a part was read before the truncation is lost; so is the one it now runs into.
    whole = (re.fullmatch(rb"line (\d{9}) of a worker that says as much as it can", line) for line in lines)
    found = [int(match[1]) for match in whole if match]
    return Flood(int(lines[-1].split()[1]), found, len(older))


def test_rotation_by_size_loses_no_line_where_a_range_can_be_removed(tmp_path: Path) -> None:
    if file_system(tmp_path) not in ("ext2/ext3", "xfs"):  # the first stands for ext4 as well
        pytest.skip("only ext4 and XFS can remove a range of a file")
    result = flood(tmp_path / "state")
    assert result.rotations >= 3
    assert result.found == list(range(result.wrote))


def test_rotation_by_truncation_loses_only_what_is_written_within_it() -> None:
    state = Path(f"/dev/shm/dsv4-test-{os.getpid()}")
    assert file_system(state.parent) == "tmpfs"
    try:
        result = flood(state)
    finally:
        shutil.rmtree(state)
    assert result.rotations >= 3
    assert result.found == sorted(set(result.found))
    # Two system calls of the shepherd lie between the end of the file and its truncation: microseconds, unless the
    # scheduler puts another process between them. 50 ms of the writer's speed for each is the bound on a busy machine.
    lines_in_50_ms = result.wrote * 0.05 / WRITES_FOR_S
    assert result.wrote - len(result.found) <= result.rotations * lines_in_50_ms


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`."""
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()
