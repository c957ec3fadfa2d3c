"""What only the systemd supervisor has: a manager that may be missing, secrets, and what a person does by systemctl."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4ctl import procfs
from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import JournalLog
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec, UnitState
from dsv4ctl.supervisors.systemd import SLICE, SystemdSupervisor
from dsv4ctl.waiting import wait_until
from tests.systemd import UserManager

HOST = LocalHost()
UNIT = "dsv4-test-decode-0"
SLEEP = ("/bin/sleep", "300")


@pytest.fixture
def supervisor(in_user_manager: UserManager, tmp_path: Path) -> Iterator[SystemdSupervisor]:
    made = SystemdSupervisor(HOST, str(tmp_path / "sta te"))
    yield made
    if handle := made.find(UNIT):
        made.kill(handle)
        made.forget(handle)


def systemctl(*argv: str) -> str:
    return subprocess.run(["systemctl", "--user", *argv], capture_output=True, text=True, check=True).stdout


def ended(supervisor: SystemdSupervisor, handle: UnitHandle) -> int | None:
    """The exit code, once the unit has ended."""

    def status_if_ended() -> tuple[int | None] | None:
        status = supervisor.status(handle)
        return (status.exit_code,) if status.state is UnitState.EXITED and not status.pids else None

    return wait_until(status_if_ended, deadline_s=10, what=f"the end of {handle.unit}")[0]


def test_a_unit_is_a_service_in_our_slice_with_its_output_in_the_journal(supervisor: SystemdSupervisor) -> None:
    handle = supervisor.start(UnitSpec(UNIT, SLEEP))
    shown = systemctl("show", UNIT, "-p", "Slice", "-p", "Transient", "-p", "InvocationID", "-p", "MainPID")
    assert sorted(shown.split()) == sorted(
        [f"Slice={SLICE}", "Transient=yes", f"InvocationID={handle.invocation_id}", f"MainPID={handle.pid}"]
    )
    assert procfs.processes(HOST)[handle.pid].start_ticks == handle.start_ticks
    assert supervisor.log(handle.unit) == JournalLog(f"{UNIT}.service", user=True)


def test_the_log_of_one_start_has_nothing_of_the_one_before(supervisor: SystemdSupervisor) -> None:
    first = supervisor.start(UnitSpec(UNIT, ("/bin/echo", "[Errno 98] of the first")))
    ended(supervisor, first)
    second = supervisor.start(UnitSpec(UNIT, ("/bin/sh", "-c", "echo of the second; exec sleep 300")))
    with HOST.follow(supervisor.log(UNIT, second), tail_lines=1000) as stream:
        lines = [wait_until(lambda: stream.readline(0.1), deadline_s=10, what="a line")]
        while (line := stream.readline(0.5)) is not None:
            lines.append(line)
    assert "of the second" in lines
    assert not any("of the first" in line for line in lines)
    with HOST.follow(supervisor.log(UNIT), tail_lines=1000) as stream:
        found = wait_until(lambda: "of the first" in (stream.readline(0.1) or ""), deadline_s=10, what="the first")
    assert found


@pytest.mark.parametrize("argv", [SLEEP, ("/no/such/program",)])
def test_no_secret_stays_behind_where_others_may_read(
    supervisor: SystemdSupervisor,
    tmp_path: Path,
    in_user_manager: UserManager,
    argv: tuple[str, ...],
) -> None:
    try:
        supervisor.start(UnitSpec(UNIT, argv, {"A_TOKEN": "s3cret"}))
    except OperationFailed:
        assert argv != SLEEP
    assert not list(tmp_path.rglob("*.env"))
    assert "s3cret" not in systemctl("show", UNIT)
    assert (
        "s3cret" not in subprocess.run(["grep", "-rs", "s3cret", "/run/user/0"], capture_output=True, text=True).stdout
    )


def test_a_person_who_stops_a_unit_lets_its_worker_drain(supervisor: SystemdSupervisor) -> None:
    """systemctl stop: SIGTERM to the worker alone, which still has its child; how it ended is known afterwards."""
    child = "trap 'echo child hit' TERM; while :; do sleep 0.1; done"
    script = "sh -c \"$1\" & trap 'sleep 0.5; exit 3' TERM; echo up; wait"
    handle = supervisor.start(UnitSpec(UNIT, ("/bin/sh", "-c", script, "sh", child)))
    with HOST.follow(supervisor.log(handle.unit), tail_lines=10) as log:
        wait_until(lambda: log.readline(0.2) == "up", deadline_s=10, what="the worker")
        systemctl("stop", UNIT)
        assert ended(supervisor, handle) == 3
        assert log.readline(1.0) != "child hit"


def test_how_a_unit_ended_is_known_after_systemd_has_forgotten_it(supervisor: SystemdSupervisor) -> None:
    handle = supervisor.start(UnitSpec(UNIT, SLEEP))
    supervisor.terminate(handle)
    assert ended(supervisor, handle) == -signal.SIGTERM
    wait_until(
        lambda: "not-found" in systemctl("show", UNIT, "-p", "LoadState"), deadline_s=10, what="systemd to forget"
    )
    assert supervisor.status(handle).exit_code == -signal.SIGTERM
    found = supervisor.find(UNIT)
    assert found is not None
    assert found.invocation_id == handle.invocation_id
    assert supervisor.status(found).exit_code == -signal.SIGTERM


def test_a_unit_file_of_somebody_else_keeps_its_name(
    supervisor: SystemdSupervisor,
    in_user_manager: UserManager,
) -> None:
    path = in_user_manager.home / ".config/systemd/user" / f"{UNIT}.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[Service]\nExecStart=/bin/sleep 300\n")
    systemctl("daemon-reload")
    systemctl("start", UNIT)
    try:
        with pytest.raises(OperationFailed, match="in use"):
            supervisor.start(UnitSpec(UNIT, SLEEP))
        assert supervisor.find(UNIT) is None
        assert "=active" in systemctl("show", UNIT, "-p", "ActiveState")
    finally:
        systemctl("stop", UNIT)
        path.unlink()
        systemctl("daemon-reload")


def test_without_a_manager_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    supervisor = SystemdSupervisor(HOST, str(tmp_path / "state"))
    with pytest.raises(OperationFailed, match="no systemd user manager") as error:
        supervisor.start(UnitSpec(UNIT, SLEEP))
    assert error.value.why
    assert "loginctl enable-linger" in (error.value.hint or "")
    with pytest.raises(OperationFailed, match="no systemd user manager"):
        supervisor.find(UNIT)
    assert not list((tmp_path / "state").rglob("*.*"))
