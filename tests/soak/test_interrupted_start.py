"""Ctrl-C at the steps of a start that tests/stack/test_interrupted_start.py leaves out."""

from pathlib import Path

import pytest

from tests.interrupting import check_ctrl_c_at

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("step", ["start:router", "await:router", "readback:router"])
def test_ctrl_c_in_the_middle_of(step: str, tmp_path: Path) -> None:
    check_ctrl_c_at(step, tmp_path)
