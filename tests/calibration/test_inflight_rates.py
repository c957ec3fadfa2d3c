"""The rates that docs/commands/watch-inflight.md states, on fixed seeds; `benchmarks.calibration` runs more of them."""

import pytest

from tests.calibration.rates import LOADS, rates
from tests.calibration.traces import Load

SEEDS = range(25)
HARDLY = 1
"""Of 25 watches. The stated rate is one in two hundred."""


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_healthy_queue_is_hardly_ever_called_pinned(load: Load) -> None:
    assert rates(load, SEEDS, counts_left=True).false <= HARDLY


@pytest.mark.parametrize("load", [load for load in LOADS if load.occupancy < 1.0], ids=str)
def test_at_low_load_a_pin_is_found_by_counts_alone(load: Load) -> None:
    assert rates(load, SEEDS, counts_left=True).missed <= 2
