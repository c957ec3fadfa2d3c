"""Histories of times in the inflight queue whose true quantiles are known, from seeds: steady, bursty, cut short,
drifting."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from dsv4ctl.tuning.dwells import Block, History
from serving.telemetry import DWELL_BUCKETS_S

BLOCK_S = 5.0
Draw = Callable[[random.Random], float]


@dataclass(frozen=True)
class Kind:
    """A way in which requests stay. `slow` is drawn from in slow spells, which come at random and are `spell_s` long on
    average, for a share `slow_share` of the time; `grows` is how many times as long requests stay at the end."""

    name: str
    draw: Draw
    survival: Callable[[float], float]
    slow: float = 1.0
    slow_share: float = 0.0
    spell_s: float = 20.0
    ended_after_s: float = math.inf
    aborted_share: float = 0.0
    grows: float = 1.0

    def quantile(self, share: float) -> float:
        """The true quantile at the end of the history."""
        low, high = 1e-6, 1e6
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            above = (1 - self.slow_share) * self.survival(middle / self.grows)
            above += self.slow_share * self.survival(middle / self.slow / self.grows)
            low, high = (middle, high) if above > 1 - share else (low, middle)
        return high


def log_normal(median_s: float, sigma: float) -> tuple[Draw, Callable[[float], float]]:
    """As transfers through a switch or over PCIe look."""
    normal = NormalDist(math.log(median_s), sigma)
    return lambda rng: math.exp(rng.gauss(normal.mean, sigma)), lambda seconds: 1 - normal.cdf(math.log(seconds))


def pareto(least_s: float, alpha: float) -> tuple[Draw, Callable[[float], float]]:
    """With a tail that has no end."""
    return (
        lambda rng: least_s * rng.paretovariate(alpha),
        lambda seconds: 1.0 if seconds <= least_s else (least_s / seconds) ** alpha,
    )


def bimodal(short_s: float, long_s: float, long_share: float) -> tuple[Draw, Callable[[float], float]]:
    """Short prompts and long ones."""
    (short, short_above), (long, long_above) = log_normal(short_s, 0.5), log_normal(long_s, 0.5)
    return (
        lambda rng: (long if rng.random() < long_share else short)(rng),
        lambda seconds: (1 - long_share) * short_above(seconds) + long_share * long_above(seconds),
    )


KINDS = (
    Kind("log-normal", *log_normal(0.05, 1.0)),
    Kind("wide log-normal", *log_normal(0.05, 2.0)),
    Kind("Pareto", *pareto(0.02, 1.5)),
    Kind("bimodal", *bimodal(0.02, 2.0, 0.02)),
    Kind("bursty", *log_normal(0.05, 0.7), slow=20.0, slow_share=0.03),
    Kind("long bursts", *log_normal(0.05, 0.7), slow=20.0, slow_share=0.1, spell_s=60.0),
    Kind("censored by the watchdog", *log_normal(0.05, 2.0), ended_after_s=20.0),
    Kind("censored by aborts", *log_normal(0.05, 1.0), aborted_share=0.003),
    Kind("mostly aborted", *log_normal(0.05, 1.0), aborted_share=0.05),
    Kind("drifting", *log_normal(0.05, 1.0), grows=3.0),
    Kind("drifting slowly", *log_normal(0.05, 1.0), grows=1.3),
)


def history_of(kind: Kind, rng: random.Random, *, seconds: float, per_s: float) -> History:
    """A window of this kind, with requests that come at random."""
    blocks: list[Block] = []
    spells = _spells(kind, rng)
    is_slow, changes_s = next(spells)
    for number in range(int(seconds / BLOCK_S)):
        counts, ended = [0] * (len(DWELL_BUCKETS_S) + 1), 0
        at_s = number * BLOCK_S + rng.expovariate(per_s)
        while at_s < (number + 1) * BLOCK_S:
            while at_s >= changes_s:
                is_slow, changes_s = next(spells)
            stay_s = kind.draw(rng) * (kind.slow if is_slow else 1.0) * kind.grows ** (at_s / seconds)
            if stay_s > kind.ended_after_s or rng.random() < kind.aborted_share:
                ended += 1
            else:
                counts[next((at for at, edge in enumerate(DWELL_BUCKETS_S) if stay_s <= edge), len(counts) - 1)] += 1
            at_s += rng.expovariate(per_s)
        blocks.append(Block(BLOCK_S, tuple(counts), ended))
    return History(DWELL_BUCKETS_S, tuple(blocks))


def _spells(kind: Kind, rng: random.Random) -> Iterator[tuple[bool, float]]:
    """Whether requests are slow, and until when."""
    if not kind.slow_share:
        yield False, math.inf
        return
    at_s, is_slow = 0.0, rng.random() < kind.slow_share
    while True:
        mean_s = kind.spell_s if is_slow else kind.spell_s * (1 - kind.slow_share) / kind.slow_share
        at_s += rng.expovariate(1 / mean_s)
        yield is_slow, at_s
        is_slow = not is_slow
