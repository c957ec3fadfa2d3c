"""What a search will cost, in launches: it is played against environments whose culprits are known."""

import random
from dataclasses import dataclass

from dsv4ctl.bisect.course import Outcome
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.session import Session
from dsv4ctl.bisect.verdicts import Verdict


@dataclass(frozen=True)
class Cost:
    """Launches, the ends included: on average, and what nine of ten searches take at most. `found`: the share of
    searches that end with "guilty" within the budget."""

    mean: float
    most: int
    found: float


def expected_cost(
    units: int, culprits: int, rate: float, background: float, options: Options, rng: random.Random, sessions: int = 50
) -> Cost:
    """For a search among so many units of which `culprits` bring the symptom together, at these rates. It takes some
    hundredths of a second for each of the `sessions`."""
    launches, found = [], 0
    names = [f"{number:04}" for number in range(units)]
    for _ in range(sessions):
        culprit = frozenset(rng.sample(names, culprits))
        session = Session(names, options, rng.getrandbits(32))
        while (launch := session.next) is not None:
            shows = rng.random() < (rate if culprit <= launch.units else background)
            session.record(Verdict.SYMPTOM if shows else Verdict.CLEAN)
        launches.append(len(session.trials))
        found += session.ended is Outcome.FOUND
    launches.sort()
    return Cost(sum(launches) / sessions, launches[min(sessions - 1, int(0.9 * sessions))], found / sessions)
