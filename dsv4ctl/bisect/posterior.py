"""How likely it is that one unit alone brings the symptom, given all launches so far.

If unit `c` does, sets with it show the symptom at one rate and sets without it at another. Neither is known, so both
are integrated out under Beta distributions (as in Google's flake-aware culprit finding, ICST 2023, and git_bayesect).
Two rivals keep the search from being sure of the best of many wrong answers: that no one unit does, when two only do so
together or sets between the ends have a rate of their own, and that nothing does, when all sets have one rate.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from dsv4ctl.bisect.betting import ANY, COLD, HOT, log_marginal, log_sum
from dsv4ctl.bisect.verdicts import NOTHING, Record, Tally, bits

SEVERAL = 0.1
NONE = 0.05
"""What the rivals are thought to be worth before the first launch. A choice."""

_PACK = 1 << 20
"""Both counts of a pair in one number: there are many pairs, and few different counts among them."""


@dataclass(frozen=True)
class Shares:
    """Probabilities: of each unit that it is the one, of several that only matter together or each by itself, and of
    none. With `hot` and `cold`: for each unit, the rate that sets with it and without it have if it is the one."""

    unit: dict[int, float]
    several: float
    none: float
    hot: dict[int, float]
    cold: dict[int, float]

    def ranked(self) -> list[int]:
        """The units, likeliest first; those that are equally likely in the order of their names."""
        return sorted(self.unit, key=lambda unit: (-self.unit[unit], unit))


class Singles:
    """What a record says of the units in `bad`. Launches of sets with others in them are left out."""

    def __init__(self, record: Record, bad: int, weights: dict[int, float], *, none: float = NONE) -> None:
        self._bad = bad
        self._none = math.log(none) if none else -math.inf
        self._with = dict.fromkeys(bits(bad), NOTHING)
        self._all = self._between = self._good_end = self._bad_end = NOTHING
        whole = sum(weights[unit] for unit in self._with)
        self._prior = {unit: math.log((1 - SEVERAL - none) * weights[unit] / whole) for unit in self._with}
        self._pairs = dict.fromkeys(((1 << one) | (1 << other) for one, other in combinations(self._with, 2)), 0)
        for subset, tally in record.tallies.items():
            if not subset & ~bad:
                self._count(subset, tally)

    def _count(self, subset: int, tally: Tally) -> None:
        self._all += tally
        if not subset:
            self._good_end += tally
        elif subset == self._bad:
            self._bad_end += tally
        else:
            self._between += tally
        inside = list(bits(subset))
        for unit in inside:
            self._with[unit] += tally
        packed = tally.symptoms * _PACK + tally.clean
        for one, other in combinations(inside, 2):
            self._pairs[(1 << one) | (1 << other)] += packed

    def add(self, subset: int, *, symptom: bool) -> None:
        """One launch of a set without others in it."""
        self._count(subset, NOTHING.and_one(symptom=symptom))

    def shares(self) -> Shares:
        """The probabilities now."""
        logs: dict[int, float] = {}
        hot: dict[int, float] = {}
        cold: dict[int, float] = {}
        for unit, inside in self._with.items():
            outside = self._all - inside
            logs[unit] = self._prior[unit] + log_marginal(HOT, inside) + log_marginal(COLD, outside)
            hot[unit] = HOT.given(inside).mean
            cold[unit] = COLD.given(outside).mean
        several = math.log(SEVERAL / 2) + log_sum(self._generic(), self._pair_log())
        none = self._none + log_marginal(ANY, self._all)
        top = max(*logs.values(), several, none)
        weight = {unit: math.exp(log - top) for unit, log in logs.items()}
        whole = sum(weight.values()) + math.exp(several - top) + math.exp(none - top)
        return Shares(
            {unit: each / whole for unit, each in weight.items()},
            math.exp(several - top) / whole,
            math.exp(none - top) / whole,
            hot,
            cold,
        )

    def likeliest_pair(self) -> tuple[int, float]:
        """The two units that are likeliest to bring it together, and how likely, if no single unit does."""
        if not self._pairs:
            return 0, 0.0
        first = min(self._pairs, key=lambda pair: (-self._of_pair(self._pairs[pair]), pair))
        log = self._of_pair(self._pairs[first]) - math.log(len(self._pairs))
        return first, math.exp(log - log_sum(self._generic(), self._pair_log()))

    def order(self) -> list[int]:
        """The units, those first that are likely to be one of two that only matter together."""
        logs = {pair: self._of_pair(packed) for pair, packed in self._pairs.items()}
        top = max(logs.values(), default=0.0)
        weight = dict.fromkeys(self._with, 0.0)
        for pair, log in logs.items():
            for unit in bits(pair):
                weight[unit] += math.exp(log - top)
        return sorted(weight, key=lambda unit: (-weight[unit], unit))

    def _of_pair(self, packed: int) -> float:
        inside = Tally(*divmod(packed, _PACK))
        return log_marginal(HOT, inside) + log_marginal(COLD, self._all - inside)

    def _pair_log(self) -> float:
        """The log likelihood if two units bring it, and only together, any two being as likely."""
        if not self._pairs:
            return -math.inf
        times = Counter(self._pairs.values())
        logs = {packed: self._of_pair(packed) for packed in times}
        top = max(logs.values())
        return top + math.log(
            sum(count * math.exp(logs[packed] - top) for packed, count in times.items()) / len(self._pairs)
        )

    def _generic(self) -> float:
        ends = log_marginal(HOT, self._bad_end) + log_marginal(COLD, self._good_end)
        return ends + log_marginal(ANY, self._between)
