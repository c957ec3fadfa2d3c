"""What a record says against what is true: a reused pid, a reboot, a deleted record, two starts at once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4ctl.procfs import listeners
from tests.engine import HOST, Dsv4, StackProfile, assert_gone, leftovers, process_of, shm_files, write_profile

pytestmark = pytest.mark.stack


@pytest.fixture
def mine(tmp_path: Path) -> Dsv4:
    return Dsv4(tmp_path / "state")


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that is nobody's business."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        yield child.pid
        child.kill()


def record_path(dsv4: Dsv4, profile: StackProfile) -> Path:
    return dsv4.state / "dsv4ctl" / "stacks" / profile.name / "stack.json"


def codes(dsv4: Dsv4, profile: StackProfile) -> tuple[int, set[str]]:
    done = dsv4.run("status", profile.path, "-o", "json")
    return done.code, {finding["code"] for finding in done.document["findings"]}


def forged(mine: Dsv4, shared: StackProfile, dsv4: Dsv4, name: str, tmp_path: Path, **handle: Any) -> StackProfile:
    """A record of a stack that does not run, made from the shared one's, with handles changed."""
    profile = write_profile(tmp_path, name)
    body = json.loads(record_path(dsv4, shared).read_text())
    body["stack"] = profile.name
    body["shm"] = []
    for worker in body["workers"]:
        worker["handle"] |= handle
        worker["unit"] = worker["handle"]["unit"] = f"dsv4-{profile.name}-{worker['name']}"
    path = record_path(mine, profile)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(body))
    return profile


def test_a_reused_pid_is_not_ours_and_is_not_touched(
    mine: Dsv4, shared: StackProfile, dsv4: Dsv4, bystander: int, tmp_path: Path
) -> None:
    profile = forged(mine, shared, dsv4, "reused", tmp_path, pid=bystander, start_ticks=1)
    assert codes(mine, profile) == (1, {"PID_REUSED"})
    assert mine.run("stop", "--yes", profile.path).code == 0
    assert process_of(bystander) is not None
    assert mine.run("status", profile.path).code == 3


def test_a_reboot_is_said_and_the_record_cleared(
    mine: Dsv4, shared: StackProfile, dsv4: Dsv4, bystander: int, tmp_path: Path
) -> None:
    profile = forged(mine, shared, dsv4, "rebooted", tmp_path, pid=bystander, boot_id="another-boot")
    assert codes(mine, profile) == (1, {"HOST_REBOOTED"})
    assert mine.run("stop", "--yes", profile.path).code == 0
    assert process_of(bystander) is not None


def test_a_deleted_record_is_noticed_and_the_units_are_still_known(
    dsv4: Dsv4, shared: StackProfile, tmp_path: Path
) -> None:
    path = record_path(dsv4, shared)
    kept = tmp_path / "stack.json"
    shutil.move(path, kept)
    try:
        code, found = codes(dsv4, shared)
        assert (code, found) == (0, {"RECORD_MISSING"})
        again = dsv4.run("serve", "--detach", shared.path)
        assert again.code == 6
        assert "its record in the state directory is gone" in again.err
    finally:
        shutil.move(kept, path)
    assert codes(dsv4, shared) == (0, set())


def test_a_deleted_state_directory_leaves_strays_that_are_told_and_not_touched(
    shared: StackProfile, tmp_path: Path
) -> None:
    elsewhere = Dsv4(tmp_path / "empty")
    done = elsewhere.run("serve", "--detach", shared.path)
    assert done.code == 6
    assert "STRAY_PROCESSES" in done.err
    assert "PORT_TAKEN" in done.err
    assert leftovers(shared, shm_files()).pids


@pytest.mark.beside
def test_of_two_starts_at_once_one_wins_and_the_other_says_so(mine: Dsv4, tmp_path: Path) -> None:
    before = shm_files()
    profile = write_profile(tmp_path, "twice")
    both = [mine.start("serve", "--detach", profile.path) for _ in range(2)]
    said = [serving.communicate(timeout=180)[1] for serving in both]
    assert sorted(serving.returncode for serving in both) == [0, 6], said
    loser = said[0] if both[0].returncode == 6 else said[1]
    assert "another dsv4ctl is at work on this stack" in loser
    assert f"pid {both[0].pid if both[0].returncode == 0 else both[1].pid}" in loser
    assert mine.run("stop", "--yes", profile.path).code == 0
    assert_gone(profile, before)


def test_every_port_of_the_plan_is_on_the_loopback_alone(shared: StackProfile) -> None:
    addresses = {listener.address for listener in listeners(HOST) if listener.port in shared.ports}
    assert addresses == {"127.0.0.1"}
