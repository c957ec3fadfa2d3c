"""The bound on how long a healthy request stays in the queue, or why there is none."""

from dataclasses import dataclass

from dsv4ctl.tuning.binomial import may_exceed, needed
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.independence import DRIFTS_AT, FEWEST_BLOCKS, Worth, worth_of

CONFIDENCE = 0.95
QUANTILES = (0.999, 0.99)
"""The first for which there is evidence enough is bounded."""


@dataclass(frozen=True)
class Bound:
    """`seconds` bounds the `quantile` of the time in the queue, with this confidence: of `requests`, worth `samples`
    independent ones, `may_exceed` may lie above it, and `above` do. `ended` were ended early and count as longer."""

    quantile: float
    confidence: float
    seconds: float
    requests: int
    samples: int
    may_exceed: int
    above: int
    ended: int
    worth: Worth


@dataclass(frozen=True)
class NoBound:
    """Why there is none, and what it takes; `missing` is how many more requests, None where more would not help. The
    requests were worth so many `samples`; None of `worth` where there were too few to say."""

    why: str
    missing: int | None = None
    samples: int | None = None
    worth: Worth | None = None


def bound_of(
    history: History, *, quantiles: tuple[float, ...] = QUANTILES, confidence: float = CONFIDENCE
) -> Bound | NoBound:
    """The bound on the highest of these quantiles that a history has evidence for."""
    worth = worth_of(history)
    if worth is None:
        return NoBound(
            f"{history.requests} requests in {history.blocks_with_requests} blocks of the window say nothing of how "
            f"they hang together: it takes {FEWEST_BLOCKS} blocks with requests in them",
            max(
                1,
                needed(quantiles[-1], confidence) - history.requests,
                FEWEST_BLOCKS - history.blocks_with_requests,
            ),
        )
    if abs(worth.drift) > DRIFTS_AT:
        longer = "longer" if worth.drift > 0 else "shorter"
        return NoBound(
            f"requests stay {longer} in the second half of the window than in the first, by {abs(worth.drift):.1f} "
            "standard errors: what was is no measure of what will be. Measure while the load is steady, or for longer",
            worth=worth,
        )
    samples = worth.samples(history.requests)
    refused: NoBound | None = None
    for quantile in quantiles:
        allowed = may_exceed(samples, quantile, confidence)
        if allowed is None:
            continue
        # Of the samples so many; each stands for as many requests as it takes to make one.
        may = int(allowed * worth.effect)
        for bucket, edge in enumerate(history.edges):
            above = sum(history.above(bucket))
            if above <= may:
                return Bound(quantile, confidence, edge, history.requests, samples, may, above, history.ended, worth)
        beyond = sum(history.above(len(history.edges) - 1)) - history.ended
        refused = NoBound(
            f"{history.ended} of {history.requests} requests were ended early, and {beyond} stayed longer than "
            f"{history.edges[-1]:g} s; at most {may} may, for a bound on the {quantile:.1%} quantile",
            samples=samples,
            worth=worth,
        )
    if refused is not None:
        return refused
    missing = int((needed(quantiles[-1], confidence) - samples) * worth.effect) + 1
    enough = needed(quantiles[-1], confidence)
    return NoBound(
        f"{history.requests} requests are worth {samples} independent ones (design effect {worth.effect:.2f}), and "
        f"{enough} bound the {quantiles[-1]:.0%} quantile with {confidence:.0%}",
        missing,
        samples,
        worth,
    )
