"""A wall clock that a test can move while the engine runs. Python imports this by itself where PYTHONPATH has it.

The offset in seconds stands in the file that DSV4_TEST_WALL_CLOCK names. `time.time`, `time.time_ns` and what asks them
see the clock moved, in this process and in those forked from it, as they would after the machine's clock was set; the
monotonic clock goes on, as it would then. The machine's own clock is left alone.
"""

import os
import time
from pathlib import Path

_FILE = os.environ.get("DSV4_TEST_WALL_CLOCK", "")
_LOOK_EVERY_S = 0.05

_true_time_ns = time.time_ns
_state = [0, float("-inf")]  # offset in ns, when it was read


def _offset_ns() -> int:
    now = time.monotonic()
    if now - _state[1] >= _LOOK_EVERY_S:
        _state[1] = now
        _state[0] = int(float(Path(_FILE).read_text()) * 1e9)
    return int(_state[0])


def _time_ns() -> int:
    return _true_time_ns() + _offset_ns()


def _time() -> float:
    return _time_ns() / 1e9


if _FILE:
    time.time_ns = _time_ns
    time.time = _time
