"""Waiting ends at success or at the deadline, and never sleeps past it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.waiting import wait_until


class Clock:
    """A clock that only sleeping and polling move."""

    def __init__(self, poll_s: float) -> None:
        self.now = 100.0
        self.poll_s = poll_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@given(true_after=st.floats(0, 20), deadline=st.floats(0, 10), interval=st.floats(0.01, 3), poll=st.floats(0.001, 2))
def test_a_success_within_the_deadline_is_never_lost(
    true_after: float, deadline: float, interval: float, poll: float
) -> None:
    clock = Clock(poll)

    def condition() -> bool:
        came = clock.now >= 100.0 + true_after
        clock.now += clock.poll_s
        return came

    try:
        wait_until(
            condition, deadline_s=deadline, what="it", interval_s=interval, clock=lambda: clock.now, sleep=clock.sleep
        )
    except DeadlineExceeded:
        assert true_after > deadline - 1e-9
    assert clock.now <= 100.0 + deadline + 2 * poll + 1e-6


def test_the_error_says_what_was_awaited() -> None:
    with pytest.raises(DeadlineExceeded, match="waited 0 s for the port of prefill-0"):
        wait_until(lambda: None, deadline_s=0, what="the port of prefill-0")
