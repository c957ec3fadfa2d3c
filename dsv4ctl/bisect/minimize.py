"""Delta debugging with sequential tests: a set of which no unit can be left out.

ddmin (Zeller and Hildebrandt, IEEE TSE 2002) halves, keeps what still shows the symptom, and refines. Its oracle here
is a sequential probability ratio test (Wald, 1945) of the rate of the bad end against that of the good end, both as far
as they are known. Errors add up over the calls, so each has the error of the whole over the calls that a pair takes.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dsv4ctl.bisect.betting import log_odds_hot
from dsv4ctl.bisect.verdicts import Ask, CannotLaunch, Phase, Record, Steps, launched, total

LONGEST = 60
"""A test that needs more launches is left unresolved."""


def expected_calls(units: int) -> int:
    """The tests that ddmin takes for two units that only matter together, about: 20 for 16 units. That many were seen
    where the units are in no order; those that are likely come first here, so that it takes fewer."""
    return 4 * max(1, math.ceil(math.log2(max(2, units)))) + 4


def minimize(record: Record, bad: int, order: Sequence[int], error: float) -> Steps[int]:
    """A subset of `bad` that shows the symptom and of which no unit can be left out, as far as tests go. Units that
    come first in `order` are tried together. Launches that are on record count."""
    log_odds = math.log(expected_calls(len(order)) / error)
    current, parts = list(order), 2
    hot, cold = {bad}, {0}
    while len(current) > 1:
        found = None
        for candidate in _candidates(current, parts):
            if (yield from _shows(record, _subset(candidate), hot, cold, log_odds)):
                found = candidate
                break
        if found is not None:
            parts = 2 if len(found) * 2 <= len(current) else max(parts - 1, 2)
            current, parts = found, min(parts, len(found))
        elif parts >= len(current):
            break
        else:
            parts = min(2 * parts, len(current))
    return _subset(current)


def _subset(units: Sequence[int]) -> int:
    return sum(1 << unit for unit in units)


def _candidates(units: list[int], parts: int) -> Iterator[list[int]]:
    """The parts, then what is left without each."""
    edges = [round(number * len(units) / parts) for number in range(parts + 1)]
    chunks = [units[start:end] for start, end in pairwise(edges)]
    yield from chunks
    if parts > 2:
        for number in range(parts):
            yield [unit for other, chunk in enumerate(chunks) if other != number for unit in chunk]


def _shows(record: Record, subset: int, hot: set[int], cold: set[int], log_odds: float) -> Steps[bool]:
    """Whether a set has the rate of those in `hot`, and not that of those in `cold`; it joins them. False where that
    stays open, or where it cannot be launched."""
    launches = 0
    while subset not in record.cannot and launches < LONGEST:
        high, low = (total(record.of(one) for one in sets - {subset}) for sets in (hot, cold))
        odds = log_odds_hot(record.of(subset), high, low)
        if abs(odds) >= log_odds:
            (hot if odds > 0 else cold).add(subset)
            return odds > 0
        launches += 1
        reason = f"whether {subset.bit_count()} of the units show the symptom without the others"
        try:
            yield from launched(record, Ask(subset, Phase.MINIMIZE, reason))
        except CannotLaunch:
            break
    return False
