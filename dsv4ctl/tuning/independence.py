"""How much a history is worth: requests that are slow together are not as many independent samples.

What makes one transfer slow, a decode that is busy or a link that is full, makes its neighbours slow as well. So the
long ones come in clusters, and a bound that counts each of them as a sample of its own is too sure of itself. The
design effect says by how much: the variance of the share of long ones from block to block, against the one that
independent samples would have (Kish, Survey Sampling, 1965, for ratios of clusters of unequal size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsv4ctl.tuning.dwells import Block, History, merged

FEWEST_BLOCKS = 20
FEWEST_LONG = 10
"""Fewer blocks with requests in them, or fewer long ones, and nothing can be said of how they vary."""

DRIFTS_AT = 3.0
"""Standard errors between the halves of a window above which it is not one history: one in 370 by chance."""


@dataclass(frozen=True)
class Worth:
    """`effect`: so many requests are worth one independent sample. `drift`: how many standard errors the second half
    of the window is away from the first, at the bucket where that is most; positive where requests stay longer."""

    effect: float
    drift: float

    def samples(self, requests: int) -> int:
        """How many independent samples so many requests are worth."""
        return int(requests / self.effect)


def worth_of(history: History) -> Worth | None:
    """What the requests of a history are worth; None where it is too short to say.

    Blocks are merged two by two as long as there are enough, since a cluster that is longer than a block is seen only
    in longer ones; the largest effect counts.
    """
    if history.blocks_with_requests < FEWEST_BLOCKS:
        return None
    effect, drift = 1.0, 0.0
    known = False
    blocks: Sequence[Block] = history.blocks
    while len(blocks) >= FEWEST_BLOCKS:
        for bucket in range(len(history.edges)):
            sizes = [block.requests for block in blocks]
            above = History(history.edges, tuple(blocks)).above(bucket)
            if not FEWEST_LONG <= sum(above) <= sum(sizes) - FEWEST_LONG:
                continue
            known = True
            here = design_effect(sizes, above)
            effect = max(effect, here)
            shift = _shift(sizes, above, here)
            drift = shift if abs(shift) > abs(drift) else drift
        blocks = merged(blocks, 2)
    if not known and not _in_one_bucket(history):
        return None
    return Worth(effect, drift)


def design_effect(sizes: Sequence[int], above: Sequence[int]) -> float:
    """The variance of the share sum(above) / sum(sizes) over blocks, against that of as many independent requests;
    at least 1."""
    total, share = sum(sizes), sum(above) / sum(sizes)
    blocks = len(sizes)
    spread = sum((long - share * size) ** 2 for size, long in zip(sizes, above, strict=True))
    of_blocks = blocks / (blocks - 1) * spread / total**2
    return max(1.0, of_blocks / (share * (1 - share) / total))


def _shift(sizes: Sequence[int], above: Sequence[int], effect: float) -> float:
    half = len(sizes) // 2
    first, second = sum(sizes[:half]), sum(sizes[half:])
    if not first or not second:
        return 0.0
    share = sum(above) / sum(sizes)
    error = math.sqrt(effect * share * (1 - share) * (1 / first + 1 / second))
    return (sum(above[half:]) / second - sum(above[:half]) / first) / error


def _in_one_bucket(history: History) -> bool:
    """Whether next to all requests took about as long: then there is nothing that could come in clusters."""
    counts = [sum(block.counts[at] for block in history.blocks) for at in range(len(history.edges) + 1)]
    return history.requests - max(counts) < FEWEST_LONG
