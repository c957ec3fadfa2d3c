"""The live table fits a terminal of 80 columns as well as one of 140, and ages are short."""

import io

import pytest
from rich.console import Console as RichConsole

from dsv4ctl.console import make_table
from dsv4ctl.live import COLUMNS, age_text, worker_rows
from dsv4ctl.observe import WorkerView
from dsv4ctl.supervisors.base import UnitState


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0s"),
        (59.94, "59.9s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (7800, "2h10m"),
        (273600, "3d04h"),
    ],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text


def view(name: str, **changes: object) -> WorkerView:
    facts: dict[str, object] = {
        "name": name,
        "role": "prefill",
        "host": "local",
        "url": "http://127.0.0.1:30100",
        "state": UnitState.RUNNING,
        "pid": 4194303,
        "age_s": 754.0,
        "answers": False,
        "waits_for": "the KV transfer engine",
        "exit_code": None,
        "first_error": None,
        "last_line": "",
        **changes,
    }
    return WorkerView(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 140])
def test_nothing_is_cut_at(width: int) -> None:
    out = io.StringIO()
    views = [
        view("prefill-0"),
        view("decode-11", answers=True, waits_for=""),
        view("router", state=None, pid=None, age_s=None, waits_for=""),
        view("decode-2", state=UnitState.EXITED, exit_code=-9, waits_for=""),
    ]
    RichConsole(file=out, width=width).print(make_table(COLUMNS, worker_rows(views)))
    lines = out.getvalue().splitlines()
    assert len(lines) == 5
    assert all(len(line) <= width for line in lines)
    for word in ("4194303", "12m34s", "the KV transfer engine", "not started", "ended by SIGKILL"):
        assert word in out.getvalue()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"answers": True}, "up"),
        ({}, "starting"),
        ({"proven": True}, "silent"),
        ({"state": None}, "not started"),
        ({"state": UnitState.EXITED, "exit_code": 3}, "exit code 3"),
        ({"state": UnitState.EXITED, "exit_code": -15}, "ended by SIGTERM"),
        ({"state": UnitState.GONE}, "gone"),
        ({"state": UnitState.REBOOTED}, "rebooted"),
    ],
)
def test_the_word_for_a_state(changes: dict[str, object], word: str) -> None:
    assert view("prefill-0", **changes).word == word
