"""Exact tails of the binomial distribution: bounds that rest on no model of what was measured."""

import math

_TINY = 1e-12


def probability_of_at_most(most: int, of: int, share: float) -> float:
    """P(X <= most) where X counts, among `of` independent trials, those of an event with probability `share`.

    Summed from the largest term outward, so that neither a million trials nor a share of 1e-6 lose anything.
    """
    if most < 0:
        return 0.0
    if most >= of or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    start = min(most, int((of + 1) * share))
    term = math.exp(_log_term(start, of, share))
    total, odds = term, share / (1 - share)
    below, down = term, start
    while down > 0 and below > _TINY * total:
        below *= down / ((of - down + 1) * odds)
        down -= 1
        total += below
    above, up = term, start
    while up < most and above > _TINY * total:
        above *= (of - up) / (up + 1) * odds
        up += 1
        total += above
    return min(1.0, total)


def _log_term(count: int, of: int, share: float) -> float:
    ways = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    return ways + count * math.log(share) + (of - count) * math.log1p(-share)


def may_exceed(of: int, quantile: float, confidence: float) -> int | None:
    """How many of `of` samples may lie above a value that is to bound their `quantile` with this confidence.

    The value bounds it unless more samples are at or below the quantile than below the value. The chance of that is a
    tail of the binomial distribution, whatever the samples' own distribution is (David and Nagaraja, Order Statistics,
    7.1). None where even the largest sample is no bound: there are too few.
    """
    share, error = 1 - quantile, 1 - confidence
    if probability_of_at_most(0, of, share) > error * (1 + _TINY):
        return None
    low, high = 0, of
    while high - low > 1:
        middle = (low + high) // 2
        if probability_of_at_most(middle, of, share) <= error * (1 + _TINY):
            low = middle
        else:
            high = middle
    return low


def needed(quantile: float, confidence: float) -> int:
    """How many samples it takes before the largest of them bounds the quantile: 299 for 99 % with 95 %, 2,995 for
    99.9 %."""
    return math.ceil(math.log(1 - confidence) / math.log(quantile) - _TINY)


def share_at_most(seen: int, of: int, confidence: float) -> float:
    """The share that an event has at most, seen so many times of `of` (Clopper and Pearson, Biometrika 1934,
    one-sided); 1 where nothing was tried.
    """
    if seen >= of:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > _TINY * high:
        middle = (low + high) / 2
        if probability_of_at_most(seen, of, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high
