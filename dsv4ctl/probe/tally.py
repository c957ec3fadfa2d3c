"""Counting: how often a hop failed, on which connections, after which gap, and whether that can be chance."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dsv4ctl.probe.outcome import CONTENT, Exchange, Outcome

SMALL, LARGE = 1, 2
"""The single generations, as they are numbered."""

CHANCE = 0.05
"""A difference that chance alone would make as often as this is not called one."""


@dataclass(frozen=True)
class Count:
    """Failed of asked."""

    failed: int
    asked: int

    def __str__(self) -> str:
        return f"{self.failed} of {self.asked}"

    @property
    def always(self) -> bool:
        """Whether every one failed, of at least one."""
        return 0 < self.failed == self.asked


class Manner(StrEnum):
    """How a hop behaves, all that was seen of it taken together."""

    ANSWERS = "answers"
    ALWAYS = "always fails"
    REUSED = "fails on reused connections only"
    LARGE = "fails on large requests only"
    SMALL = "fails on small requests only"
    SOMETIMES = "fails now and then"
    ONCE = "failed once"
    UNSEEN = "could not look"

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return self is Manner.ANSWERS

    @property
    def broken(self) -> bool:
        """Whether it is known to fail, by more than one sight of it."""
        return self in {Manner.ALWAYS, Manner.REUSED, Manner.LARGE, Manner.SMALL, Manner.SOMETIMES}


@dataclass(frozen=True)
class HopTally:
    """What was seen of one hop.

    Attributes:
        reused: requests on a connection that had carried one before; `fresh`: the first of a connection.
        reused_by_gap, fresh_by_gap: the same by the gap in seconds before them.
        kept_by_gap: later rounds of conversations that keep their connection, also where the hop had closed it with
            notice in between, and they went on with another.
        small, large: the single generations of either size.
        first_failed_nth: the earliest request on a connection that failed.
        failures: how often each outcome came.
        chance: how often chance alone would put all failures on reused connections, where they all are.
        idle_close_s: the shortest time after which it closed idle connections with notice.
        unseen: requests of which nothing is known: the hop did not take the connection in time, or the way to it was
            lost.
    """

    hop: str
    manner: Manner
    reused: Count
    fresh: Count
    reused_by_gap: tuple[tuple[float, Count], ...]
    fresh_by_gap: tuple[tuple[float, Count], ...]
    kept_by_gap: tuple[tuple[float, Count], ...]
    small: Count
    large: Count
    first_failed_nth: int | None
    failures: tuple[tuple[Outcome, int], ...]
    chance: float | None
    idle_close_s: float | None
    unseen: int = 0

    @property
    def all(self) -> Count:
        """Both kinds of connection together."""
        return Count(self.reused.failed + self.fresh.failed, self.reused.asked + self.fresh.asked)

    @property
    def main_failure(self) -> Outcome | None:
        """What it mostly fails with."""
        return max(self.failures, key=lambda pair: pair[1])[0] if self.failures else None

    @property
    def failing_gaps(self) -> tuple[float, ...]:
        """The gaps after which reused connections failed, if there are others after which they did not."""
        failing = tuple(gap for gap, count in self.reused_by_gap if count.failed)
        return failing if any(not count.failed for _, count in self.reused_by_gap) else ()


def tally(hop: str, exchanges: Iterable[Exchange]) -> HopTally:
    """Count what was asked of a hop, and name its manner."""
    asked = [exchange for exchange in exchanges if exchange.hop == hop]
    mine = [exchange for exchange in asked if exchange.seen]
    reused = [exchange for exchange in mine if exchange.reused]
    fresh = [exchange for exchange in mine if not exchange.reused]
    failed = [exchange for exchange in mine if exchange.failed]
    outcomes = [exchange.reply.outcome for exchange in failed]
    chance = _chance_of_reuse(reused, fresh)
    small, large = (_count([e for e in mine if e.phase == "walk" and e.round == number]) for number in (SMALL, LARGE))
    closes = [e.reply.peer.idle_close_s for e in mine if e.reply.peer.idle_close_s is not None]
    return HopTally(
        hop=hop,
        manner=_manner(_count(reused), _count(fresh), outcomes, chance, _one_size(small, large, len(failed))),
        reused=_count(reused),
        fresh=_count(fresh),
        reused_by_gap=_by_gap(reused),
        fresh_by_gap=_by_gap(fresh),
        kept_by_gap=_by_gap([exchange for exchange in mine if exchange.kept and exchange.round > 1]),
        small=small,
        large=large,
        first_failed_nth=min((e.reply.nth for e in failed if e.reused), default=None),
        failures=tuple((outcome, outcomes.count(outcome)) for outcome in dict.fromkeys(outcomes)),
        chance=chance,
        idle_close_s=min(closes, default=None),
        unseen=len(asked) - len(mine),
    )


def _one_size(small: Count, large: Count, failed: int) -> Manner | None:
    """The size on which alone a hop fails, and always."""
    if large.always and large.failed == failed > 1 and small.asked:
        return Manner.LARGE
    if small.always and small.failed == failed > 1 and large.asked:
        return Manner.SMALL
    return None


def _manner(
    reused: Count, fresh: Count, outcomes: Sequence[Outcome], chance: float | None, size: Manner | None
) -> Manner:
    failed = reused.failed + fresh.failed
    asked = reused.asked + fresh.asked
    if not asked:
        return Manner.UNSEEN
    if not failed:
        return Manner.ANSWERS
    if failed == 1 and not CONTENT & {*outcomes}:
        return Manner.ONCE
    if failed == asked:
        return Manner.ALWAYS
    if size is not None:
        return size
    if chance is not None and chance <= CHANCE:
        return Manner.REUSED
    return Manner.SOMETIMES


def _count(exchanges: Sequence[Exchange]) -> Count:
    return Count(sum(exchange.failed for exchange in exchanges), len(exchanges))


def _by_gap(exchanges: Sequence[Exchange]) -> tuple[tuple[float, Count], ...]:
    gaps = sorted({exchange.gap_s for exchange in exchanges})
    return tuple((gap, _count([e for e in exchanges if e.gap_s == gap])) for gap in gaps)


def _chance_of_reuse(reused: Sequence[Exchange], fresh: Sequence[Exchange]) -> float | None:
    """How often chance alone would find so many failures among the reused, if the connection did not matter.

    None when a fresh connection failed too, or none failed. Looking at each gap by itself finds what only happens after
    a long one; looking at several is paid for.
    """
    if any(exchange.failed for exchange in fresh) or not any(exchange.failed for exchange in reused):
        return None
    looks = [_count(reused)]
    by_gap = _by_gap(reused)
    if len(by_gap) > 1:
        looks += [count for _, count in by_gap]
    return min(1.0, len(looks) * min(chance_of_split(look, Count(0, len(fresh))) for look in looks))


def chance_of_split(left: Count, right: Count) -> float:
    """Fisher's exact test, one-sided: how often chance puts as many of all failures, or more, on the left."""
    failed = left.failed + right.failed
    total = math.comb(left.asked + right.asked, failed)
    most = min(failed, left.asked)
    return sum(_ways(left, right, failed, on_left) for on_left in range(left.failed, most + 1)) / total


def _ways(left: Count, right: Count, failed: int, on_left: int) -> int:
    return math.comb(left.asked, on_left) * math.comb(right.asked, failed - on_left)


def alike(inner: HopTally, failing: HopTally) -> tuple[Count, Count]:
    """Requests of an inner hop and of the failing one before it that are alike in what matters to the failure.

    Where a hop fails on reused connections, that is the later rounds, after the gaps after which it fails; where it
    fails on one size, the single generations of that size.
    """
    if failing.manner is Manner.LARGE:
        return inner.large, failing.large
    if failing.manner is Manner.SMALL:
        return inner.small, failing.small
    if failing.manner is not Manner.REUSED:
        return inner.all, failing.all
    gaps = failing.failing_gaps
    return _sum(inner.kept_by_gap, gaps), _sum(failing.reused_by_gap, gaps)


def _sum(counts: Sequence[tuple[float, Count]], gaps: Sequence[float]) -> Count:
    chosen = [count for gap, count in counts if not gaps or gap in gaps]
    return Count(sum(count.failed for count in chosen), sum(count.asked for count in chosen))
