"""The strata of a window: requests that should take about as long, each with a bound of its own.

A few long transfers among many short ones are the few that a bound on all of them leaves out. So each stratum is looked
at like the whole, and the largest bound counts. What too few requests were seen of has none; whether that matters
depends on how those stayed that were seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv4ctl.metrics.exposition import Exposition, Histogram
from dsv4ctl.tuning.binomial import probability_of_at_most
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import Block, History, by_bucket, together

BY_STRATUM = "dsv4_inflight_dwell_by_stratum_seconds"
ARRIVED, EARLY = "arrived", "early"

NAMES: Mapping[str, str] = {
    "first": "first on its connection",
    "up_to_1MiB": "up to 1 MiB",
    "up_to_16MiB": "up to 16 MiB",
    "up_to_256MiB": "up to 256 MiB",
    "up_to_4GiB": "up to 4 GiB",
    "more": "more than 4 GiB",
}
"""What a person calls the engine's strata, in their order (docs/metrics.md)."""


@dataclass(frozen=True)
class Stratum:
    """One stratum of a window. `history` has all of its requests, `early` those that were ended early, by how long
    they had stayed then."""

    name: str
    history: History
    early: History

    @property
    def longest_s(self) -> float | None:
        """The upper edge of the longest bucket with a request in it, infinity beyond the last; None without any."""
        edges = (*self.history.edges, math.inf)
        counts = zip(self.history.in_buckets, self.early.in_buckets, strict=True)
        return max((edge for edge, (here, early) in zip(edges, counts, strict=True) if here + early), default=None)

    def seen_above(self, seconds: float) -> int:
        """How many were seen to stay longer than this edge of a bucket; of what was ended early, what had by then."""
        edges = (*self.history.edges, math.inf)
        counts = zip(self.history.in_buckets, self.early.in_buckets, strict=True)
        return sum(here + early for edge, (here, early) in zip(edges, counts, strict=True) if edge > seconds)


@dataclass(frozen=True)
class Judged:
    """A stratum with its bound, or why it has none."""

    stratum: Stratum
    bound: Bound | NoBound

    @property
    def words(self) -> str:
        """What a person calls it."""
        return NAMES.get(self.stratum.name, self.stratum.name)


@dataclass(frozen=True)
class Largest:
    """The largest of the bounds, and whose it is: a stratum's name, or None for that of the whole."""

    bound: Bound
    stratum: str | None = None

    @property
    def words(self) -> str:
        """It and whose it is, as they end a sentence."""
        of = "" if self.stratum is None else f" of the stratum {NAMES.get(self.stratum, self.stratum)!r}"
        return f"the bound of {self.bound.seconds:g} s{of}"


@dataclass
class CountedStrata:
    """The strata of one prefill worker: block by block as many as its history has. None before the first look, and
    none of a worker that does not count them."""

    _arrived: dict[str, list[Block]] = field(default_factory=dict)
    _early: dict[str, list[Block]] = field(default_factory=dict)
    _before: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)

    def begin(self, exposition: Exposition) -> None:
        """Count from what the engine says now."""
        self._before = _histograms(exposition)
        self._arrived = {name: [] for name, ended in self._before if ended == ARRIVED}
        self._early = {name: [] for name in self._arrived}

    def add(self, exposition: Exposition, seconds: float) -> None:
        """One more block, of so many seconds. An engine that counts other strata now is counted anew."""
        before, self._before = self._before, _histograms(exposition)
        if before.keys() != self._before.keys():
            self.begin(exposition)
            return
        for name in self._arrived:
            arrived, early = (
                by_bucket(self._before[name, ended].since(before[name, ended])) for ended in (ARRIVED, EARLY)
            )
            self._arrived[name].append(Block(seconds, arrived, sum(early)))
            self._early[name].append(Block(seconds, early))

    def strata(self, edges: tuple[float, ...]) -> tuple[Stratum, ...]:
        """What was counted since the last beginning."""
        return tuple(
            Stratum(name, History(edges, tuple(blocks)), History(edges, tuple(self._early[name])))
            for name, blocks in self._arrived.items()
        )


def _histograms(exposition: Exposition) -> dict[tuple[str, str], Histogram]:
    """By stratum and by how they ended, in the order of `NAMES`; only strata that have both."""
    there = {point.labels.get("stratum", "") for point in exposition.named(f"{BY_STRATUM}_bucket")}
    known = [name for name in NAMES if name in there]
    found: dict[tuple[str, str], Histogram] = {}
    for name in [*known, *sorted(there - NAMES.keys())]:
        both = {ended: exposition.buckets(BY_STRATUM, stratum=name, ended=ended) for ended in (ARRIVED, EARLY)}
        if all(both.values()):
            found |= {(name, ended): histogram for ended, histogram in both.items() if histogram is not None}
    return found


def of_all(workers: Sequence[Sequence[Stratum]]) -> tuple[Stratum, ...]:
    """The strata of several workers that were looked at in the same moments; none unless all of them have them."""
    names = [stratum.name for stratum in workers[0]]
    if any([stratum.name for stratum in strata] != names for strata in workers):
        return ()
    return tuple(
        Stratum(same[0].name, together([one.history for one in same]), together([one.early for one in same]))
        for same in zip(*workers, strict=True)
    )


def judged(strata: Sequence[Stratum]) -> tuple[Judged, ...]:
    """Each with its bound."""
    return tuple(Judged(stratum, bound_of(stratum.history)) for stratum in strata)


def largest_of(whole: Bound, strata: Sequence[Judged]) -> Largest:
    """The largest of all bounds, in seconds; the whole's among equals."""
    own = [Largest(one.bound, one.stratum.name) for one in strata if isinstance(one.bound, Bound)]
    return max([Largest(whole), *own], key=lambda found: found.bound.seconds)


def outruns(one: Judged, bound: Bound, seconds: float, margin: float) -> bool:
    """Whether the requests of a stratum that has no bound speak against a timeout of so many seconds.

    They do if more of them were seen above the bound that it rests on than the bound leaves out, beyond what chance
    does, so that it is none of theirs, and if the timeout is not `margin` times as long as the longest of them.
    """
    above, longest_s = one.stratum.seen_above(bound.seconds), one.stratum.longest_s
    if isinstance(one.bound, Bound) or not above or longest_s is None or margin * longest_s <= seconds:
        return False
    by_chance = 1 - probability_of_at_most(above - 1, one.stratum.history.requests, 1 - bound.quantile)
    return by_chance <= 1 - bound.confidence
