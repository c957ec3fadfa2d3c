"""The tests judge the code, and not how busy the machine is that they run on."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

LONGER_THAN_HYPOTHESIS_ALLOWS_S = 0.25


@given(st.integers())
@settings(max_examples=2)
def test_an_example_may_take_its_time(number: int) -> None:
    time.sleep(LONGER_THAN_HYPOTHESIS_ALLOWS_S)
    assert number == int(str(number))
