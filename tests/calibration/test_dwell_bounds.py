"""The bound that `tune-timeout` states holds as often as it says; `benchmarks.dwell_bounds` looks at more histories."""

import pytest

from dsv4ctl.tuning.bound import CONFIDENCE
from tests.calibration.dwell_histories import KINDS, Kind
from tests.calibration.dwell_rates import coverage, window_of

pytestmark = pytest.mark.timeout(600)

SEEDS = range(40)
CANNOT = {"mostly aborted", "drifting"}
"""Nearly all of these are refused: so many requests were ended early that the quantile is among them, or the halves of
the window differ."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_true_quantile_lies_below_the_bound(kind: Kind) -> None:
    found = coverage(kind, window_of(kind), SEEDS)
    assert found.missed <= (1 - CONFIDENCE) * found.stated
    assert (found.refused > 0.9 * found.histories) == (kind.name in CANNOT), found
