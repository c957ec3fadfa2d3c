"""Worlds whose culprits are known, for the searches of `bisect-env` and for its rivals."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from dsv4ctl.bisect.verdicts import Verdict

Units = frozenset[str]
Show = Callable[[Units], Verdict]
"""One launch with these units from the bad side."""

REQUESTS = 10
IN_A_HOT_LAUNCH = 0.5
"""The chance of each request of a launch whose requests are clustered, if that launch is hot."""


def names(count: int) -> list[str]:
    """Units, in the order of their names."""
    return [f"decode:U{number:02}" for number in range(count)]


@dataclass(frozen=True)
class Kind:
    """`culprits`: how many units each set has that brings the symptom, all of them together. `rates` of the symptom and
    of the `backgrounds`, per launch, are drawn from. A launch is asked several requests; where they are `clustered`,
    for half of the worlds, most of those of a hot launch show the symptom. `masked`: by this factor one unit that is no
    culprit makes everything rarer."""

    name: str
    culprits: tuple[int, ...]
    rates: tuple[float, ...] = (0.5,)
    backgrounds: tuple[float, ...] = (0.0,)
    units: int = 16
    invalid: float = 0.0
    clustered: bool = False
    masked: float = 1.0


@dataclass
class World:
    """One of a kind."""

    kind: Kind
    culprits: tuple[Units, ...]
    mask: str
    rate: float
    background: float
    clustered: bool
    rng: random.Random

    def show(self, units: Units) -> Verdict:
        """One launch: symptom if any of its requests shows it."""
        if self.rng.random() < self.kind.invalid:
            return Verdict.INVALID
        clean = 1 - self.background
        for culprit in self.culprits:
            if culprit <= units:
                clean *= 1 - self.rate
        rate = (1 - clean) * (self.kind.masked if self.mask in units else 1.0)
        return Verdict.SYMPTOM if self._any_request(rate) else Verdict.CLEAN

    def _any_request(self, rate: float) -> bool:
        each = 1 - (1 - rate) ** (1 / REQUESTS)
        if self.clustered:
            hot = rate / (1 - (1 - IN_A_HOT_LAUNCH) ** REQUESTS)
            each = IN_A_HOT_LAUNCH if self.rng.random() < hot else 0.0
        return any(self.rng.random() < each for _ in range(REQUESTS))


def world(kind: Kind, seed: int) -> World:
    """One of this kind, from a seed."""
    rng = random.Random(f"{kind.name} {kind.units} {seed}")
    free = names(kind.units)
    rng.shuffle(free)
    culprits = []
    for size in kind.culprits:
        culprits.append(frozenset(free[:size]))
        free = free[size:]
    rate, background = rng.choice(kind.rates), rng.choice(kind.backgrounds)
    clustered = kind.clustered and rng.random() < 0.5
    return World(kind, tuple(culprits), free[0], rate, background, clustered, rng)


def one_of(units: int, rate: float, background: float) -> Kind:
    """One culprit, at rates that are always the same."""
    return Kind(f"one of {units}, rate {rate:g}, background {background:g}", (1,), (rate,), (background,), units)


def mixed(name: str, culprits: tuple[int, ...], units: int = 16, masked: float = 1.0) -> Kind:
    """All that may be met: rates from 0.3 to 1, a background of up to 5 %, launches that are invalid, clustered."""
    rates, backgrounds = (0.3, 0.5, 0.7, 0.9, 1.0), (0.0, 0.01, 0.02, 0.05)
    named = f"{name} of {units}" if culprits else f"{name}, {units} units"
    return Kind(named, culprits, rates, backgrounds, units, invalid=0.1, clustered=True, masked=masked)


def nothing(units: int) -> Kind:
    """No culprit, and a symptom that comes with both sides, from never to always."""
    backgrounds = (0.0, 0.01, 0.02, 0.05, 0.3, 0.5, 0.9, 1.0)
    return Kind(f"none, {units} units", (), (0.0,), backgrounds, units, invalid=0.1, clustered=True)
