"""The search for one culprit."""

from dataclasses import dataclass
from enum import Enum, auto

from dsv4ctl.bisect.choose import most_informative
from dsv4ctl.bisect.posterior import NONE, Singles
from dsv4ctl.bisect.verdicts import Ask, CannotLaunch, Phase, Record, Steps, launched

NOMINATED = 0.7
"""From this probability on a unit is tried alone and left out, which tells as much of it as any other set would, and is
evidence for its confirmation as well. A choice, measured by benchmarks.bisect_search."""

SURE = 0.9
"""From this probability on there is no one culprit. A choice."""

PATIENCE = 60
"""After so many launches without a result it is asked again whether the ends differ. A choice."""


class NoSingle(Enum):
    """Why there is no nominee."""

    SEVERAL = auto()
    NONE = auto()
    """Nothing brings it, or it takes longer than one is ready to wait without knowing that the ends differ."""


@dataclass(frozen=True)
class Nominee:
    """A unit that is likely to be the one."""

    unit: int
    probability: float


def search_single(record: Record, bad: int, weights: dict[int, float], *, differ: bool) -> Steps[Nominee | NoSingle]:
    """Launch the most informative set until one unit is likely, or none is. Where it is known that the ends differ, the
    answer is not that nothing brings the symptom."""
    singles = Singles(record, bad, weights, none=0.0 if differ else NONE)
    launches = 0
    while True:
        shares = singles.shares()
        first = shares.ranked()[0]
        if shares.several >= SURE:
            return NoSingle.SEVERAL
        if shares.none >= SURE or (launches == PATIENCE and not differ):
            return NoSingle.NONE
        if shares.unit[first] >= NOMINATED or len(shares.unit) == 1:
            return Nominee(first, shares.unit[first])
        subset = most_informative(shares, bad, record.cannot)
        if subset is None:
            return NoSingle.SEVERAL
        launches += 1
        reason = f"tells most of which one it is; the likeliest is so by {shares.unit[first]:.0%}"
        try:
            symptom = yield from launched(record, Ask(subset, Phase.SEARCH, reason))
        except CannotLaunch:
            continue
        singles.add(subset, symptom=symptom)
