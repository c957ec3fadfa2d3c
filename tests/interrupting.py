"""Ctrl-C at a step of a start, as a person presses it."""

import json
import signal
from pathlib import Path

import pytest

from tests.engine import Dsv4, assert_gone, shm_files, write_profile


def check_ctrl_c_at(step: str, folder: Path) -> None:
    """A start that is interrupted at this step exits with 130 and leaves nothing of what was begun."""
    before = shm_files()
    mine = Dsv4(folder / "state")
    profile = write_profile(folder, "interrupted")
    serving = mine.start("serve", "-o", "jsonl", profile.path)
    assert serving.stdout is not None
    for line in serving.stdout:
        event = json.loads(line).get("event", {})
        if event.get("step") == step and event.get("state") == "begin":
            serving.send_signal(signal.SIGINT)
            break
    else:
        pytest.fail(f"the start ended before {step}")
    out, errors = serving.communicate(timeout=90)
    assert serving.returncode == 130, errors
    assert json.loads(out.splitlines()[-1])["error"]["exit_code"] == 130
    assert_gone(profile, before)
    assert mine.run("status", profile.path).code == 3
