"""Whoever reads us may go away; an act goes on, and ends as it would have."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.engine import Dsv4, assert_gone, shm_files, write_profile

pytestmark = [pytest.mark.stack, pytest.mark.beside]


def first_line_then_close(running: "subprocess.Popen[str]") -> None:
    assert running.stdout is not None
    assert running.stderr is not None
    running.stderr.readline()
    running.stderr.close()
    running.stdout.close()


def test_a_start_and_a_stop_that_nobody_listens_to(tmp_path: Path) -> None:
    before = shm_files()
    mine = Dsv4(tmp_path / "state")
    profile = write_profile(tmp_path, "unheard", extends="cpu-kv-heavy")
    serving = mine.start("serve", "--detach", profile.path)
    first_line_then_close(serving)
    assert serving.wait(120) == 0
    assert mine.run("status", profile.path).code == 0
    stopping = mine.start("stop", "--yes", profile.path)
    first_line_then_close(stopping)
    assert stopping.wait(60) == 0
    assert_gone(profile, before)


def test_ctrl_c_after_the_terminal_has_gone_ends_the_stack(tmp_path: Path) -> None:
    before = shm_files()
    mine = Dsv4(tmp_path / "state")
    profile = write_profile(tmp_path, "unseen")
    serving = mine.start("serve", profile.path)
    assert serving.stderr is not None
    assert any("Ctrl-C ends the stack" in line for line in serving.stderr)
    serving.stderr.close()
    serving.send_signal(signal.SIGINT)
    assert serving.wait(60) == 130
    assert_gone(profile, before)
    assert serving.stdout is not None
    serving.stdout.close()


def test_a_full_disk_behind_the_output_of_a_look_is_an_error(tmp_path: Path) -> None:
    mine = Dsv4(tmp_path / "state")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*mine.command, "profile", "list"], env=mine.env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "the output could not be written" in done.stderr
    assert "Traceback" not in done.stderr
