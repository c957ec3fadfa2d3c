"""The rates that docs/commands/watch-inflight.md states, on fixed seeds; `benchmarks.calibration` runs more of them."""

import pytest

from tests.calibration.rates import LOADS, rates
from tests.calibration.traces import Load

pytestmark = pytest.mark.timeout(600)

SEEDS = range(12)


@pytest.mark.parametrize("counts_left", [True, False], ids=["counted", "not known"])
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_healthy_queue_is_not_called_pinned_and_at_low_load_a_pin_is_found(load: Load, counts_left: bool) -> None:
    found = rates(load, SEEDS, counts_left=counts_left)
    assert found.false == 0
    if load.occupancy < 1.0 and (counts_left or load.sigma < 1.0):
        assert found.missed == 0
