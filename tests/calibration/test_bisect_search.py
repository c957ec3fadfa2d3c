"""What `bisect-env` calls guilty is guilty as often as it says; `benchmarks.bisect_search` plays 2,000 of each kind."""

import math
import random
from collections.abc import Callable

import pytest

from dsv4ctl.bisect.betting import log_evidence_higher
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.session import Session
from dsv4ctl.bisect.verdicts import Tally, Verdict
from dsv4ctl.bisect.words import Word, answer_of
from tests.calibration.bisect_rates import ours, rates, rival
from tests.calibration.bisect_rivals import delta_debugging, halving
from tests.calibration.bisect_worlds import Kind, mixed, names, nothing, one_of

OPTIONS = Options()
SESSIONS = 100
KINDS = (
    mixed("one", (1,)),
    mixed("one", (1,), units=32),
    mixed("two together", (2,)),
    mixed("two by themselves", (1, 1)),
    mixed("one, masked by half", (1,), masked=0.5),
    nothing(16),
    nothing(32),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_called_guilty_is(kind: Kind) -> None:
    found = rates(kind, ours(OPTIONS), range(SESSIONS))
    assert found.wrong <= OPTIONS.error * (found.guilty if kind.culprits else found.sessions), found
    if kind.culprits == (1,):
        assert found.whole >= 0.85 * found.sessions, found
    if not kind.culprits:
        assert found.acquitted >= 0.75 * found.sessions, found


@pytest.mark.parametrize(("rate", "likely", "confirmed"), [(0.9, 12, 19), (0.5, 27, 45), (0.3, 70, 95)])
def test_what_one_culprit_of_sixteen_costs(rate: float, likely: float, confirmed: float) -> None:
    found = rates(one_of(16, rate, 0.0), ours(OPTIONS, watch=True), range(SESSIONS))
    assert found.likely <= likely, found
    assert found.mean <= confirmed, found
    assert found.likely_right >= 0.95 * SESSIONS, found


def test_rivals_are_wrong_more_often_or_say_nothing() -> None:
    kind = one_of(16, 0.5, 0.02)
    mine = rates(kind, ours(OPTIONS), range(SESSIONS)).whole
    for method in (halving, delta_debugging):
        assert rates(kind, rival(method), range(SESSIONS)).whole < 0.8 * mine


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.3, 0.7, 1.0])
def test_evidence_that_is_looked_at_after_each_launch_misleads_no_more_often_than_it_says(rate: float) -> None:
    rng = random.Random(f"looking {rate}")
    misled = 0
    for _ in range(400):
        high, low = Tally(), Tally()
        for _ in range(60):
            symptom = rng.random() < rate
            # The side that would help most to mislead is launched.
            if log_evidence_higher(high.and_one(symptom=True), low) > log_evidence_higher(
                high, low.and_one(symptom=False)
            ):
                high = high.and_one(symptom=symptom)
            else:
                low = low.and_one(symptom=symptom)
            if log_evidence_higher(high, low) >= OPTIONS.log_needed:
                misled += 1
                break
    assert misled <= 0.05 * 400


@pytest.mark.parametrize(
    "rate",
    [lambda at: min(0.8, at / 75), lambda at: max(0.0, 0.8 - at / 75), lambda at: 0.4 + 0.4 * math.sin(at / 8)],
    ids=["rises", "falls", "comes and goes"],
)
def test_a_symptom_that_drifts_convicts_nobody(rate: Callable[[int], float]) -> None:
    guilty = 0
    for seed in range(SESSIONS):
        rng = random.Random(f"drifting {seed}")
        session = Session(names(16), OPTIONS, seed)
        while session.next is not None:
            session.record(Verdict.SYMPTOM if rng.random() < rate(len(session.trials)) else Verdict.CLEAN)
        guilty += answer_of(session).word is Word.GUILTY
    assert guilty <= 0.05 * SESSIONS
