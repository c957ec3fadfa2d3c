"""Evidence against "this rate is not higher than that one" which stays valid however often one looks, and whenever one
stops.

The evidence is an e-value: how many times a stake has grown that was bet on the alternative at odds that the null makes
fair. If the null holds it ever exceeds 1/error with a chance of at most `error` (Ville's inequality). Here it is the
likelihood of all launches under the alternative, its rates integrated out under Beta distributions, over the greatest
likelihood that the null allows (universal inference: Wasserman, Ramdas and Balakrishnan, PNAS 2020, section 8). No rate
has to be known, and what the next launch is may depend on all that went before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dsv4ctl.bisect.verdicts import Tally


@dataclass(frozen=True)
class Beta:
    """A distribution of a rate."""

    symptoms: float
    clean: float

    @property
    def mean(self) -> float:
        """Its mean."""
        return self.symptoms / (self.symptoms + self.clean)

    def given(self, tally: Tally) -> "Beta":
        """What it is after these launches."""
        return Beta(self.symptoms + tally.symptoms, self.clean + tally.clean)


HOT = Beta(1.0, 1.0)
"""The rate of the symptom: anything."""

COLD = Beta(0.5, 9.5)
"""The background: 5 % on average, and most often less."""


@lru_cache(maxsize=1 << 16)
def log_marginal(prior: Beta, tally: Tally) -> float:
    """The log likelihood of launches, in one order, with their rate integrated out (Beta-Bernoulli)."""
    a, b = prior.symptoms, prior.clean
    return (
        math.lgamma(a + tally.symptoms)
        - math.lgamma(a)
        + math.lgamma(b + tally.clean)
        - math.lgamma(b)
        - math.lgamma(a + b + tally.launches)
        + math.lgamma(a + b)
    )


def log_likelihood(tally: Tally, rate: float) -> float:
    """Of launches in one order at a known rate; minus infinity where it cannot be."""
    found = 0.0
    for count, chance in ((tally.symptoms, rate), (tally.clean, 1 - rate)):
        if count:
            found += count * math.log(chance) if chance > 0 else -math.inf
    return found


@lru_cache(maxsize=1 << 16)
def greatest_rising(tallies: tuple[Tally, ...]) -> float:
    """The greatest log likelihood of launches whose rates do not fall from one tally to the next, by pooling those that
    do (Ayer et al., Annals of Mathematical Statistics 1955)."""
    pools: list[Tally] = []
    for tally in tallies:
        if not tally.launches:
            continue
        pools.append(tally)
        while len(pools) > 1 and (pools[-2].symptoms * pools[-1].launches >= pools[-1].symptoms * pools[-2].launches):
            pools[-2:] = [pools[-2] + pools[-1]]
    return sum(log_likelihood(pool, pool.symptoms / pool.launches) for pool in pools)


def log_evidence(bets: Sequence[tuple[Beta, Tally]], null: tuple[Tally, ...]) -> float:
    """The log of the e-value against the null that the rates of `null` do not fall in this order. `bets` are the same
    launches, each tally with the distribution of its rate under the alternative, which may come from any launches that
    were made before the first of the tally, and from none that were made later."""
    return sum(log_marginal(prior, tally) for prior, tally in bets) - greatest_rising(null)


def log_evidence_higher(high: Tally, low: Tally) -> float:
    """For "the rate of `high` is higher than that of `low`"."""
    return log_evidence(((HOT, high), (COLD, low)), (high, low))


ANY = Beta(0.5, 0.5)


@lru_cache(maxsize=1 << 14)
def log_evidence_alike(high: Tally, low: Tally, apart: float) -> float:
    """For "both have the same rate", against "that of `high` is higher by `apart` or more, and twice as high"."""
    if not high.launches:
        return 0.0
    return log_marginal(ANY, high + low) - _greatest_apart(high, low, apart)


def _greatest_apart(high: Tally, low: Tally, apart: float) -> float:
    def at(rate: float) -> float:
        return log_likelihood(high, max(rate + apart, 2 * rate)) + log_likelihood(low, rate)

    if low.launches:
        seen, background = high.symptoms / high.launches, low.symptoms / low.launches
        if seen >= max(background + apart, 2 * background):
            return log_likelihood(high, seen) + log_likelihood(low, background)
    # Beyond lies the edge of the null, of two straight pieces, on each of which the likelihood is concave.
    return max(_peak(at, 0.0, min(apart, 1 - apart)), _peak(at, apart, 0.5) if apart < 0.5 else -math.inf)


def _peak(function: Callable[[float], float], least: float, most: float) -> float:
    while most - least > 1e-6:
        third = (most - least) / 3
        if function(least + third) < function(most - third):
            least += third
        else:
            most -= third
    return function((least + most) / 2)


def log_sum(*logs: float) -> float:
    """The log of the sum of numbers whose logs these are."""
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs)) if top > -math.inf else top


def log_odds_hot(tally: Tally, hot: Tally, cold: Tally) -> float:
    """How much likelier launches are at the rate of `hot` than at that of `cold`, as a log; what the rates are is known
    from those launches alone."""
    return log_marginal(HOT.given(hot), tally) - log_marginal(COLD.given(cold), tally)
