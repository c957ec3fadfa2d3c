"""Ctrl-C at every step of a start: exit 130, and nothing is left of what was begun."""

import json
import signal
from pathlib import Path

import pytest

from tests.engine import Dsv4, assert_gone, shm_files, write_profile
from tests.interrupting import check_ctrl_c_at

pytestmark = [pytest.mark.stack, pytest.mark.beside]

# The steps between these: tests/soak/test_interrupted_start.py.
STEPS = ("model:local", "start:prefill-0", "start:decode-0", "await:prefill-0", "canary:large")


@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_in_the_middle_of(step: str, tmp_path: Path) -> None:
    check_ctrl_c_at(step, tmp_path)


def test_a_second_ctrl_c_ends_what_was_started_at_once(tmp_path: Path) -> None:
    before = shm_files()
    mine = Dsv4(tmp_path / "state")
    profile = write_profile(tmp_path, "twice-interrupted")
    serving = mine.start("serve", "-o", "jsonl", profile.path)
    assert serving.stdout is not None
    for line in serving.stdout:
        event = json.loads(line).get("event", {})
        if event.get("step") == "await:prefill-0" and event.get("state") == "begin":
            serving.send_signal(signal.SIGINT)
        if event.get("step") == "drain:local" and event.get("state") == "begin":
            serving.send_signal(signal.SIGINT)
            break
    _, errors = serving.communicate(timeout=60)
    assert serving.returncode == 130, errors
    assert_gone(profile, before)
