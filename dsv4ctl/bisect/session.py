"""A search as a machine of values: units, options, a seed and the verdicts so far give the next launch or the answer.

There is no other state, so a session is resumed by giving it the verdicts of its journal again, and any part of a
journal leads on to the same answer.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4ctl.bisect.course import Course, Outcome
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.verdicts import Ask, CannotLaunch, Phase, Verdict, bits


@dataclass(frozen=True)
class Launch:
    """What to launch: `number` counts from 1, `units` come from the bad side and all others from the good one."""

    number: int
    units: frozenset[str]
    phase: Phase
    reason: str


@dataclass(frozen=True)
class Trial:
    """A launch and what it showed."""

    units: frozenset[str]
    verdict: Verdict


class WrongTrial(ValueError):
    """A trial is not the one that this session would have made: it is from another one."""


class Ended(ValueError):
    """A verdict was given to a session that has its answer."""


@dataclass(frozen=True)
class Stopped:
    """Why a search ended without an outcome. `units` is the set that cannot be launched, if that is why."""

    why: str
    units: frozenset[str] | None = None


class Session:
    """One search. `next` is the launch to make, until `ended` says how it went."""

    def __init__(self, units: Iterable[str], options: Options, seed: int) -> None:
        """
        Raises:
            ValueError: there are no units.
        """
        self.units = tuple(sorted(set(units)))
        if not self.units:
            raise ValueError("the sides do not differ in anything that is read")
        self.options = options
        self.trials: list[Trial] = []
        self.phases: dict[Phase, int] = dict.fromkeys(Phase, 0)
        self.course = Course(self.units, options, random.Random(seed))  # noqa: S311 (no secret)
        self.ended: Outcome | Stopped | None = None
        self._steps = self.course.run()
        self._ask: Ask | None = None
        self._invalid_of_set = self._invalid_in_a_row = 0
        self._go_on(None)

    @property
    def next(self) -> Launch | None:
        """The launch to make; None once the search has ended."""
        if self.ended is not None or self._ask is None:
            return None
        return Launch(len(self.trials) + 1, self.names(self._ask.subset), self._ask.phase, self._ask.reason)

    def names(self, subset: int) -> frozenset[str]:
        """The units of a set."""
        return frozenset(self.units[unit] for unit in bits(subset))

    def record(self, verdict: Verdict) -> None:
        """What the launch showed that `next` asked for.

        Raises:
            Ended
        """
        if self.ended is not None or self._ask is None:
            raise Ended("the search has ended")
        self.trials.append(Trial(self.names(self._ask.subset), verdict))
        self.phases[self._ask.phase] += 1
        if verdict is not Verdict.INVALID:
            self._invalid_of_set = self._invalid_in_a_row = 0
            self._go_on(verdict)
        else:
            self._invalid_of_set += 1
            self._invalid_in_a_row += 1
            if self._invalid_in_a_row >= self.options.most_invalid:
                self.ended = Stopped(f"the last {self._invalid_in_a_row} launches were invalid")
            elif self._invalid_of_set >= self.options.tries:
                self._invalid_of_set = 0
                self._go_on(verdict)
        if self.ended is None and len(self.trials) >= self.options.budget:
            self.ended = Stopped(f"the budget of {self.options.budget} launches is used up")

    def replay(self, trials: Iterable[Trial]) -> None:
        """Give it the trials of a journal.

        Raises:
            WrongTrial: one of them is not of the set that this session asks for.
            Ended: there are more than it took.
        """
        for trial in trials:
            launch = self.next
            if launch is not None and launch.units != trial.units:
                raise WrongTrial(
                    f"launch {launch.number} would be of {', '.join(sorted(launch.units)) or 'the good side'}, "
                    f"not of {', '.join(sorted(trial.units)) or 'the good side'}"
                )
            self.record(trial.verdict)

    def _go_on(self, verdict: Verdict | None) -> None:
        try:
            self._ask = next(self._steps) if verdict is None else self._steps.send(verdict)
        except StopIteration as stop:
            self.ended = stop.value
        except CannotLaunch as cannot:
            self.ended = Stopped(
                f"a set that is needed was invalid {self.options.tries} times", self.names(cannot.subset)
            )
