"""Forward and reverse: the culprit alone on the good side shows the symptom, and the bad side without it is clean.

Both are stated for launches made after the culprit was nominated, and for those of the ends, which do not depend on who
is nominated; so it does not matter among how many units it was the likeliest, or how it was searched for. Each must be
shown at the error of the nominee, so a wrong one, for whom one of them is false, is convicted with no more than that.

The arms serve each other: that fewer settings of the bad side do not bring *more* symptoms (the empty set no more than
the rest, the culprit alone no more than the whole) is assumed here, and here alone. Then the clean launches of the rest
say that the good side is clean, and the symptoms of the culprit alone that the bad side has them.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from dsv4ctl.bisect.betting import COLD, HOT, log_evidence, log_odds_hot, log_sum
from dsv4ctl.bisect.verdicts import Ask, Phase, Record, Steps, Tally, bits, launched, total

REFUTED = math.log(9.0)
"""The log of the odds at which a nominee is given up, or the rest has a culprit of its own. A choice."""

ON_ALL = 0.9
"""The share of a stake that is on all arms that have to do with a claim; the rest is on the two that it is about."""


class Confirmed(Enum):
    """What became of a nominee."""

    BOTH = auto()
    ANOTHER = auto()
    """It shows the symptom alone, and the bad side without it does so as well."""
    NOT_ALONE = auto()
    NOT_MINIMAL = auto()
    LONG = auto()
    """It takes longer than one is ready to wait without knowing that the ends differ."""


@dataclass(frozen=True)
class Contrast:
    """A claim that the first of a `pair` of sets has a higher rate than the second. `high` and `low` are the sets that
    have to do with it, and `null` orders them so that, if the claim is wrong, rates do not fall."""

    name: str
    high: tuple[int, ...]
    low: tuple[int, ...]
    null: tuple[int, ...]
    pair: tuple[int, int]


def contrasts(subset: int, bad: int) -> tuple[Contrast, ...]:
    """All that has to be shown of a set: forward, reverse, and, for more than one unit, that each is needed."""
    rest = bad & ~subset
    found = [
        Contrast("forward", (subset,), _once(0, rest), _once(subset, 0, rest), (subset, 0)),
        Contrast("reverse", _once(subset, bad), (rest,), _once(subset, bad, rest), (bad, rest)),
    ]
    if subset & (subset - 1):
        for unit in bits(subset):
            less = subset & ~(1 << unit)
            found.append(Contrast("needed", (subset,), (less,), (subset, less), (subset, less)))
    return tuple(found)


def _once(*subsets: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(subsets))


class Confirmation:
    """The evidence for one nominee while it comes in."""

    def __init__(self, record: Record, subset: int, bad: int, log_needed: float) -> None:
        self.subset, self.bad, self.log_needed = subset, bad, log_needed
        self.contrasts = contrasts(subset, bad)
        self.arms = _once(subset, bad & ~subset, *(one for each in self.contrasts for one in each.null))
        self._record = record
        self._before = {arm: record.of(arm) for arm in self.arms if arm not in (0, bad)}
        inside = total(tally for one, tally in record.tallies.items() if not subset & ~one)
        outside = total(tally for one, tally in record.tallies.items() if subset & ~one)
        self._prior = {arm: COLD.given(outside) for arm in self.arms}
        self._prior |= {subset: HOT.given(inside), 0: COLD, bad: HOT}

    def tally(self, arm: int) -> Tally:
        """The launches of an arm that count."""
        before = self._before.get(arm)
        return self._record.of(arm) if before is None else self._record.of(arm) - before

    def evidence(self, contrast: Contrast) -> float:
        """Its log. The stake is divided between all arms that have to do with it and the two alone that it is about,
        since there may be another culprit in the rest."""
        return log_sum(math.log(ON_ALL) + self._on(contrast.null), math.log1p(-ON_ALL) + self._on(contrast.pair))

    def _on(self, arms: tuple[int, ...]) -> float:
        tallies = [self.tally(arm) for arm in arms]
        return log_evidence(
            [(self._prior[arm], tally) for arm, tally in zip(arms, tallies, strict=True)], tuple(tallies)
        )

    def shown(self, name: str) -> bool:
        """Whether all contrasts of this name are."""
        return all(self.evidence(each) >= self.log_needed for each in self.contrasts if each.name == name)

    def rest_is_hot(self) -> bool:
        """Whether the bad side shows the symptom without the nominee."""
        rest = self.bad & ~self.subset
        hot, cold = self._record.of(self.bad), self._record.of(0)
        return bool(rest) and log_odds_hot(self.tally(rest), hot, cold) >= 2 * REFUTED

    def next_arm(self, rng: random.Random) -> int:
        """The arm that is wanted by most of the contrasts that are not shown yet, each of which wants the side that it
        has fewer launches of. Among equals at random, so that what drifts is no difference."""
        useless = self.bad & ~self.subset if self.rest_is_hot() else None
        wanted = dict.fromkeys(self.arms, 0)
        for each in self.contrasts:
            if self.evidence(each) < self.log_needed and (useless is None or each.name != "reverse"):
                high, low = (
                    sum(self.tally(arm).launches for arm in side if arm != useless) for side in (each.high, each.low)
                )
                for arm in each.high if high < low else each.low if low < high else each.null:
                    wanted[arm] += arm != useless
        most = max(wanted.values())
        return rng.choice([arm for arm in self.arms if wanted[arm] == most])


def confirm(
    confirmation: Confirmation,
    record: Record,
    rng: random.Random,
    probability: float,
    names: Sequence[str],
    *,
    longest: int | None,
) -> Steps[Confirmed]:
    """Launch the arms until both are shown, or the nominee is refuted, or for `longest` launches. `probability` is that
    of the nominee before.

    Raises:
        CannotLaunch
    """
    subset, bad = confirmation.subset, confirmation.bad
    prior = math.log(probability / (1 - probability)) if probability < 1 else math.inf
    launches = 0
    while True:
        forward, needed, reverse = (confirmation.shown(name) for name in ("forward", "needed", "reverse"))
        if forward and needed and reverse:
            return Confirmed.BOTH
        hot, cold = record.of(bad), record.of(0)
        if not forward and prior + log_odds_hot(confirmation.tally(subset), hot, cold) <= -REFUTED:
            return Confirmed.NOT_ALONE
        if not needed and any(
            log_odds_hot(confirmation.tally(less), hot, cold) >= 2 * REFUTED
            for each in confirmation.contrasts
            if each.name == "needed"
            for less in each.low
        ):
            return Confirmed.NOT_MINIMAL
        if forward and needed and confirmation.rest_is_hot():
            return Confirmed.ANOTHER
        if launches == longest:
            return Confirmed.LONG
        launches += 1
        arm = confirmation.next_arm(rng)
        yield from launched(record, Ask(arm, Phase.CONFIRM, _reason(arm, subset, bad, names)))


def _reason(arm: int, subset: int, bad: int, names: Sequence[str]) -> str:
    who = " and ".join(names)
    if arm == subset:
        return f"forward: {who} alone on the good side"
    if arm == bad & ~subset:
        return f"reverse: the bad side without {who}"
    if arm == bad:
        return f"reverse: the bad side with {who}, to compare"
    if arm == 0:
        return f"forward: the good side without {who}, to compare"
    return f"whether all of {who} are needed"
