"""How often a judge is wrong over many queues that never were: false pins, and pins that it does not see."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4ctl.inflight.judge import Judge, Limits
from tests.calibration.traces import Load, Seen, looks

SECONDS = 600.0
PINNED_AT_S = 300.0
OCCUPANCIES = (0.2, 1.0, 5.0)
SIGMAS = (0.5, 1.5)
LOADS = tuple(Load(rho, sigma, bursts) for bursts in (False, True) for rho in OCCUPANCIES for sigma in SIGMAS)


@dataclass(frozen=True)
class Rates:
    """Of so many watches of ten minutes: how many said `pinned` though nothing was, and how a real pin was found.

    `found_s`: after how many seconds, in ascending order; the others of `watches` were not found in five minutes.
    """

    load: Load
    counts_left: bool
    watches: int
    false: int
    found_s: tuple[float, ...]

    @property
    def missed(self) -> int:
        """How many pins were not found."""
        return self.watches - len(self.found_s)


def rates(load: Load, seeds: Iterable[int], *, counts_left: bool) -> Rates:
    """Watch a healthy queue and one with a pin, once for each seed."""
    false = watches = 0
    found: list[float] = []
    for seed in seeds:
        watches += 1
        healthy = looks(load, random.Random(f"healthy {seed}"), seconds=SECONDS, counts_left=counts_left)
        false += _says_pinned(healthy) is not None
        pinned = looks(
            load, random.Random(f"pinned {seed}"), seconds=SECONDS, pinned_at_s=PINNED_AT_S, counts_left=counts_left
        )
        if (when_s := _finds_it(pinned)) is not None:
            found.append(when_s)
    return Rates(load, counts_left, watches, false, tuple(sorted(found)))


def _says_pinned(seen: Iterable[Seen]) -> float | None:
    """When a pin was claimed of a queue in which no request had been for so long; None if never."""
    judge, limit_s = Judge(), Limits().pin_after_s
    for look in seen:
        (verdict,) = judge.judge(look.sample)
        if verdict.state == "pinned" and look.oldest_s < limit_s:
            return look.sample.at_s
    return None


def _finds_it(seen: Iterable[Seen]) -> float | None:
    judge = Judge()
    for look in seen:
        (verdict,) = judge.judge(look.sample)
        if verdict.state == "pinned" and look.sample.at_s > PINNED_AT_S:
            return look.sample.at_s - PINNED_AT_S
    return None
