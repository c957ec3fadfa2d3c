"""The stack under a real systemd user manager: units of its own, the journal as its log."""

import subprocess
from pathlib import Path

import pytest

from tests.engine import Dsv4, assert_gone, shm_files, write_profile
from tests.systemd import UserManager

pytestmark = [pytest.mark.stack, pytest.mark.beside]


def test_the_stack_runs_as_units_of_the_user_manager(in_user_manager: UserManager, tmp_path: Path) -> None:
    before = shm_files()
    mine = Dsv4(tmp_path / "state")
    profile = write_profile(tmp_path, "units", more='supervisor = "systemd"')
    served = mine.run("serve", "--detach", profile.path)
    assert served.code == 0, served.err
    for unit in profile.units:
        active = subprocess.run(["systemctl", "--user", "is-active", unit], capture_output=True, text=True)
        assert active.stdout.strip() == "active"

    status = mine.run("status", profile.path, "-o", "json")
    assert status.code == 0, status.err
    assert status.document["result"]["supervisor"] == "systemd"
    assert status.document["findings"] == []

    logs = mine.run("logs", "prefill-0", "-n", "500", "-p", profile.path)
    assert "KV Cache is allocated" in logs.out

    # A unit that has failed is in nobody's way.
    decode = next(unit for unit in profile.units if "decode" in unit)
    subprocess.run(["systemctl", "--user", "kill", "--signal=KILL", decode], check=True)
    restarted = mine.run("co-restart", "--yes", profile.path)
    assert restarted.code == 0, restarted.err
    assert mine.run("status", profile.path).code == 0
    for unit in profile.units:
        active = subprocess.run(["systemctl", "--user", "is-active", unit], capture_output=True, text=True)
        assert active.stdout.strip() == "active"

    stopped = mine.run("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(profile, before)
    listed = subprocess.run(
        ["systemctl", "--user", "list-units", "--all", f"dsv4-{profile.name}-*"], capture_output=True, text=True
    )
    assert "0 loaded units listed" in listed.stdout
