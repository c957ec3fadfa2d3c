"""How many fires take a change back: exactly the Poisson tail that is stated."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.tuning.fires import FALSE_ALARM, allowed_fires


def more_than(count: int, mean: float) -> float:
    return 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))


@given(st.floats(0, 60))
def test_more_come_by_chance_as_seldom_as_stated_and_one_less_would_not_do(expected: float) -> None:
    allowed = allowed_fires(expected)
    assert more_than(allowed, expected) <= FALSE_ALARM + 1e-12
    assert allowed == 0 or more_than(allowed - 1, expected) > FALSE_ALARM - 1e-12


def test_where_none_are_expected_the_first_takes_it_back() -> None:
    assert allowed_fires(0.0) == 0
    assert allowed_fires(0.005) == 0
    assert allowed_fires(2.7) == 7


def test_looking_often_does_not_make_false_alarms_more_often() -> None:
    rng = random.Random(7)
    mean, sessions = 3.0, 20_000
    allowed = allowed_fires(mean)
    alarms = 0
    for _ in range(sessions):
        at, fires = rng.expovariate(mean), 0
        while at < 1:
            fires += 1
            at += rng.expovariate(mean)
        alarms += fires > allowed
    assert alarms / sessions <= FALSE_ALARM
