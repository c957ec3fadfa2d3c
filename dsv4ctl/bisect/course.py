"""The course of a search: ends, one culprit, several, confirmations, and what is left when one was found."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from dsv4ctl.bisect.confirm import Confirmation, Confirmed, confirm
from dsv4ctl.bisect.ends import LIKELY, Ends, compare_ends
from dsv4ctl.bisect.minimize import minimize
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.posterior import Singles
from dsv4ctl.bisect.search import NOMINATED, PATIENCE, NoSingle, search_single
from dsv4ctl.bisect.verdicts import Record, Steps, bits

SHARE = 0.9
"""Of the error that is left, what each nominee may use up. One that is convicted gives its share back, so all that are
wrongly convicted, in one search, are so with the whole error at most (fallback procedure: Wiens, 2003)."""

OF_A_SET = 0.8
"""How likely a set is that delta debugging found, before it is confirmed. A choice."""


class Outcome(Enum):
    """How a course ended."""

    FOUND = auto()
    ALIKE = auto()
    NOT_SHOWN = auto()


@dataclass(frozen=True)
class Found:
    """A set of units that showed the symptom alone, at `error`, on the bad side `bad`."""

    subset: int
    bad: int
    error: float


@dataclass
class Course:
    """Where a search stands. `found`: in the order in which they were; all of them are guilty once it has ended with
    `FOUND`. `bad`: the bad side without those that were found."""

    units: Sequence[str]
    options: Options
    rng: random.Random
    record: Record = field(default_factory=Record)
    found: list[Found] = field(default_factory=list)
    bad: int = field(init=False)
    _error_left: float = field(init=False)
    _differ: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bad = self.whole
        self._error_left = self.options.error

    @property
    def whole(self) -> int:
        """All units: the bad side as it is."""
        return (1 << len(self.units)) - 1

    @property
    def weights(self) -> dict[int, float]:
        """How likely each unit is before the first launch, compared with the others."""
        return {unit: self.options.suspicion.get(name, 1.0) for unit, name in enumerate(self.units)}

    def run(self) -> Steps[Outcome]:
        """All launches, one after the other.

        Raises:
            CannotLaunch: a set that nothing can stand in for was invalid each time.
        """
        if (ends := (yield from self._ends(LIKELY))) is not None:
            return ends
        again: Found | None = None
        while True:
            if again is None:
                subset, probability = yield from self._nominate()
            else:
                self.bad, subset, probability, again = again.bad, again.subset, OF_A_SET, None
            what = (yield from self._confirm(subset, probability)) if subset else None
            if what is Confirmed.BOTH:
                return Outcome.FOUND
            if what is Confirmed.ANOTHER:
                self.bad &= ~subset
            elif what in (None, Confirmed.LONG):
                if (ends := (yield from self._firm_ends())) is None:
                    continue
                if not self.found:
                    return ends
                # What was left behind the last one is clean after all, so that it is confirmed anew.
                again = self.found.pop()

    def _ends(self, needed: float) -> Steps[Outcome | None]:
        """How it ends, if the ends are alike; None if they differ."""
        found = yield from compare_ends(self.record, self.bad, self.rng, self.options, needed)
        return {Ends.DIFFER: None, Ends.ALIKE: Outcome.ALIKE, Ends.NOT_SHOWN: Outcome.NOT_SHOWN}[found]

    def _firm_ends(self) -> Steps[Outcome | None]:
        """The same at the confidence that was asked for."""
        ends = yield from self._ends(self.options.log_needed)
        if ends is None:
            self._differ.add(self.bad)
        return ends

    def _nominate(self) -> Steps[tuple[int, float]]:
        """A set and how likely it is; the empty one where it seems that there is none."""
        differ = self.bad in self._differ
        nominee = yield from search_single(self.record, self.bad, self.weights, differ=differ)
        if not isinstance(nominee, NoSingle):
            return 1 << nominee.unit, nominee.probability
        if nominee is NoSingle.NONE or (yield from self._firm_ends()) is not None:
            return 0, 0.0
        singles = Singles(self.record, self.bad, self.weights)
        pair, probability = singles.likeliest_pair()
        if probability >= NOMINATED:
            return pair, probability
        subset = yield from minimize(self.record, self.bad, singles.order(), self.options.error)
        return subset, OF_A_SET

    def _confirm(self, subset: int, probability: float) -> Steps[Confirmed]:
        error = SHARE * self._error_left
        names = [self.units[unit] for unit in bits(subset)]
        confirmation = Confirmation(self.record, subset, self.bad, -math.log(error))
        while True:
            longest = None if self.bad in self._differ else PATIENCE
            what = yield from confirm(confirmation, self.record, self.rng, probability, names, longest=longest)
            if what is not Confirmed.LONG or (yield from self._firm_ends()) is not None:
                break
        if what in (Confirmed.BOTH, Confirmed.ANOTHER):
            self.found.append(Found(subset, self.bad, error))
        else:
            self._error_left -= error
        return what
