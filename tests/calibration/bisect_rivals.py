"""What is done by hand, or by a script of an afternoon: the rivals of `bisect-env`, on the same worlds."""

from itertools import pairwise

from dsv4ctl.bisect.verdicts import Verdict
from tests.calibration.bisect_worlds import Show, Units

RUNS = 3
REPEATS = 5
"""At a rate of 0.5 the symptom stays away five times in a row with a chance of 3 %."""


class Counted:
    """Launches, counted; an invalid one is made again."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self.launches = 0

    def __call__(self, units: Units) -> bool:
        while True:
            self.launches += 1
            if (verdict := self._show(units)) is not Verdict.INVALID:
                return verdict is Verdict.SYMPTOM


def halving(show: Counted, units: Units) -> Units | None:
    """Halve what is left; each half gets three runs, which have to agree, or it is given up."""
    left = sorted(units)
    while len(left) > 1:
        half = left[: len(left) // 2]
        shown = sum(show(frozenset(half)) for _ in range(RUNS))
        if shown not in (0, RUNS):
            return None
        left = half if shown else left[len(half) :]
    return frozenset(left)


def delta_debugging(show: Counted, units: Units) -> Units | None:
    """ddmin where a set shows the symptom if any of a fixed number of runs does; given up if the whole does not."""

    def shows(some: Units) -> bool:
        return any(show(some) for _ in range(REPEATS))

    if not shows(units):
        return None
    current, parts = sorted(units), 2
    while len(current) > 1:
        edges = [round(number * len(current) / parts) for number in range(parts + 1)]
        chunks = [frozenset(current[start:end]) for start, end in pairwise(edges)]
        if (part := next((chunk for chunk in chunks if shows(chunk)), None)) is not None:
            current, parts = sorted(part), 2
        elif (
            rest := next((chunk for chunk in chunks if parts > 2 and shows(frozenset(current) - chunk)), None)
        ) is not None:
            current, parts = sorted(frozenset(current) - rest), max(parts - 1, 2)
        elif parts == len(current):
            break
        else:
            parts = min(2 * parts, len(current))
        parts = min(parts, len(current))
    return frozenset(current)
