"""The timers of a transfer: what they count is the monotonic clock, whatever the wall clock does."""

import time
from types import SimpleNamespace

import pytest

from serving.transfer import timers

LIMIT_S = 300.0


def elapsed_of(receiver: SimpleNamespace) -> float:
    """What SGLang computes, on the wall clock."""
    return float(time.time() - receiver.init_time)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(wall=1_000_000.0, monotonic=50.0)
    monkeypatch.setattr(time, "time", lambda: now.wall)
    monkeypatch.setattr(time, "monotonic", lambda: now.monotonic)
    return now


@pytest.mark.parametrize("step_s", [0.0, 7200.0, -7200.0])
def test_a_step_of_the_wall_clock_changes_nothing(clocks: SimpleNamespace, step_s: float) -> None:
    receiver = SimpleNamespace(init_time=clocks.wall)
    assert timers.waited_for_prefill(elapsed_of, receiver) == 0
    clocks.wall += 10 + step_s
    clocks.monotonic += 10
    assert timers.waited_for_prefill(elapsed_of, receiver) == pytest.approx(10)
    clocks.wall += LIMIT_S - step_s
    clocks.monotonic += LIMIT_S
    assert timers.waited_for_prefill(elapsed_of, receiver) == pytest.approx(LIMIT_S + 10)


def test_a_wait_that_begins_anew_is_counted_anew(clocks: SimpleNamespace) -> None:
    receiver = SimpleNamespace(init_time=clocks.wall)
    timers.waited_for_prefill(elapsed_of, receiver)
    clocks.wall += 100
    clocks.monotonic += 100
    receiver.init_time = clocks.wall
    assert timers.waited_for_prefill(elapsed_of, receiver) == 0


def test_a_wait_that_has_not_begun_has_no_clock(clocks: SimpleNamespace) -> None:
    receiver = SimpleNamespace(init_time=None)
    assert timers.waited_for_prefill(lambda waiting: waiting.init_time, receiver) is None
    assert not hasattr(receiver, "dsv4_waits_since")
