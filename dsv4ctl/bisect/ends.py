"""Both ends first: does the bad side show the symptom more often than the good one?

The launches of the ends stay in the evidence of each confirmation, which is stated for all launches together, so a
search may begin as soon as a difference is likelier than not: what turns out to be none convicts nobody. Before what
costs more, and before the environment is acquitted, they are compared at the confidence that was asked for.
"""

import math
import random
from enum import Enum, auto

from dsv4ctl.bisect.betting import log_evidence_alike, log_evidence_higher
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.verdicts import Ask, Phase, Record, Steps, launched

LIKELY = math.log(1.5)
"""The log of the evidence for a difference from which on a search begins. A choice: a search tells soon enough when
there is none, and what is launched to tell the units apart tells the ends apart as well."""

PAIRS_WITHOUT = 4
"""After so many pairs without a symptom only the bad side is launched, until it shows one."""


class Ends(Enum):
    """What became of the comparison."""

    DIFFER = auto()
    ALIKE = auto()
    NOT_SHOWN = auto()


def judged(record: Record, bad: int, options: Options, needed: float) -> Ends | None:
    """What the launches of the empty set and of `bad` say; None as long as they are too few. `needed` is the log of the
    evidence that it takes for a difference."""
    high, low = record.of(bad), record.of(0)
    if log_evidence_higher(high, low) >= needed:
        return Ends.DIFFER
    # Without a symptom there is but one course that the launches can have taken, so that no stake is needed.
    if not high.symptoms and -high.clean * math.log1p(-options.least_rate) >= options.log_needed:
        return Ends.NOT_SHOWN
    if log_evidence_alike(high, low, options.least_rate) >= options.log_needed:
        return Ends.ALIKE
    return None


def compare_ends(record: Record, bad: int, rng: random.Random, options: Options, needed: float) -> Steps[Ends]:
    """Launch the ends in pairs, each in random order so that what drifts is no difference, until they are judged.

    Raises:
        CannotLaunch
    """
    while True:
        high = record.of(bad)
        pair = [bad] if not high.symptoms and high.clean >= PAIRS_WITHOUT else [0, bad]
        rng.shuffle(pair)
        for subset in pair:
            if (found := judged(record, bad, options, needed)) is not None:
                return found
            which = "the bad side" if subset == bad else "the good side"
            yield from launched(record, Ask(subset, Phase.ENDS, f"{which}, to see whether the ends differ"))
