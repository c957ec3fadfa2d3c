"""How often flow alone looks like a pin: the odds behind a verdict that rests on counts.

Whether a queue holds something at a moment is, in a healthy stack, a coin that falls anew whenever one looks again
after longer than a request stays. With mean occupancy rho it shows "something" with probability 1 - exp(-rho) where
arrivals are about Poisson (M/G/infinity; Takacs, Introduction to the Theory of Queues, 1962), so k looks in a row all
do with probability (1 - exp(-rho))^k. Rho is not known, but what was seen before is: these functions start from that.
"""

import math

FALSE_ALARM = 1e-6
"""The chance at which a verdict from counts says `pinned`: that flow alone looks so from one moment on.

Such a run can begin whenever the queue fills, which in a busy one is once a second: a false alarm in about 270 hours of
watching at worst.
"""

SUSPICION = 1e-3
"""The chance at which it says `suspect`."""


def occupied_probability(occupancy: float) -> float:
    """The probability that a queue with this mean occupancy holds something at a given moment."""
    return -math.expm1(-occupancy)


def chance_of_run(looks: int, *, occupied: int, empty: int) -> float:
    """The probability that `looks` independent looks in a row all find something, after what earlier ones found.

    `occupied` and `empty` count the earlier independent looks. The unknown (1 - exp(-rho)) is integrated out under a
    uniform prior (the Beta-Bernoulli predictive, Polya's urn), so that little history makes for little certainty: with
    none at all it is 1 / (looks + 1).
    """
    # The product of (occupied + 1 + i) / (occupied + empty + 2 + i) for every look i, which may be a hundred thousand.
    of_occupied = math.lgamma(occupied + 1 + looks) - math.lgamma(occupied + 1)
    of_all = math.lgamma(occupied + empty + 2 + looks) - math.lgamma(occupied + empty + 2)
    return math.exp(of_occupied - of_all)


def looks_needed(*, occupied: int, empty: int, chance: float) -> int | None:
    """How many looks in a row would be as unlikely as `chance`; None where more than a million would not be."""
    log_wanted, log_chance = math.log(chance), 0.0
    for looks in range(1_000_000):
        log_chance += math.log((occupied + 1 + looks) / (occupied + empty + 2 + looks))
        if log_chance <= log_wanted:
            return looks + 1
    return None


def chance_of_shift(later: int, earlier: int) -> float:
    """The probability that all of `later` values are above all of `earlier` ones, when they are alike in distribution.

    Of all orders of the values each is as likely as the others, and one in C(later + earlier, later) has them so: the
    extreme case of the rank-sum test (Wilcoxon, 1945), which knows nothing of the distribution.
    """
    return 1 / math.comb(later + earlier, later)
