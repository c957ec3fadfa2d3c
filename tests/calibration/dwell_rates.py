"""How often the bound on the time in the queue holds, over many histories whose true quantiles are known."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4ctl.tuning.bound import Bound, bound_of
from tests.calibration.dwell_histories import Kind, history_of


@dataclass(frozen=True)
class Window:
    """How long is looked, at how many requests a second."""

    seconds: float
    per_s: float

    def __str__(self) -> str:
        return f"{self.seconds / 60:g} min at {self.per_s:g}/s"


@dataclass(frozen=True)
class Coverage:
    """Of so many histories: how often a bound was stated, and how often the true quantile lay above it."""

    kind: str
    window: Window
    histories: int
    stated: int
    missed: int

    @property
    def refused(self) -> int:
        """How often there was too little evidence, or what there was did not hang together."""
        return self.histories - self.stated


def coverage(kind: Kind, window: Window, seeds: Iterable[int]) -> Coverage:
    """Look at a history of this kind for each seed."""
    histories = stated = missed = 0
    for seed in seeds:
        histories += 1
        rng = random.Random(f"{kind.name} {window} {seed}")
        found = bound_of(history_of(kind, rng, seconds=window.seconds, per_s=window.per_s))
        if isinstance(found, Bound):
            stated += 1
            missed += found.seconds < kind.quantile(found.quantile)
    return Coverage(kind.name, window, histories, stated, missed)


HALF_AN_HOUR = Window(1800.0, 2.0)
A_WORKING_DAY = Window(28_800.0, 1.0)
"""Spells of slowness that come every ten minutes are not seen in a window that has one or two of them, or none: such a
bound holds for what the window has shown (docs/commands/tune-timeout.md)."""


def window_of(kind: Kind) -> Window:
    """The window in which a kind of history shows what it is."""
    return A_WORKING_DAY if kind.slow_share else HALF_AN_HOUR
