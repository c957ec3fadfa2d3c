"""A history from what an engine has counted since it was started, looked at again and again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dsv4ctl.inflight.readings import DWELL
from dsv4ctl.metrics.exposition import Exposition, Histogram
from dsv4ctl.tuning.dwells import Block, History, by_bucket
from dsv4ctl.tuning.strata import CountedStrata, Stratum

ARRIVED = "success"
ENDED_EARLY = ("timeout", "aborted", "failed")
"""Ways to leave the queue after which nobody knows how long it would have taken. `requeued` is none of them: the
request comes again."""


class NoHistogram(Exception):
    """An engine does not count times in its inflight queue: it is stock, or has no metrics."""


@dataclass
class Counted:
    """One prefill worker. After each look: the blocks since the first, and how often it was started in between.

    What was counted before a start belongs to another engine, and what comes first after it pays for connections that
    are made once: such a history begins anew.
    """

    worker: str
    blocks: list[Block] = field(default_factory=list)
    restarts: int = 0
    edges: tuple[float, ...] = ()
    _strata: CountedStrata = field(default_factory=CountedStrata)
    _before: Mapping[str, Histogram] | None = None
    _before_s: float = 0.0

    def look(self, exposition: Exposition, at_s: float) -> None:
        """Take in what the engine says now.

        Raises:
            NoHistogram
        """
        now = {
            outcome: found
            for outcome in (ARRIVED, *ENDED_EARLY)
            if (found := exposition.buckets(DWELL, outcome=outcome)) is not None
        }
        if ARRIVED not in now:
            raise NoHistogram(self.worker)
        edges = tuple(edge for edge, _ in now[ARRIVED].counts if math.isfinite(edge))
        before, before_s = self._before, self._before_s
        self._before, self._before_s = now, at_s
        if before is None:
            self.edges = edges
            self._strata.begin(exposition)
            return
        if edges != self.edges or any(now[name].count < before[name].count for name in before.keys() & now.keys()):
            self.restarts += 1
            self.blocks.clear()
            self.edges = edges
            self._strata.begin(exposition)
            return
        arrived = now[ARRIVED].since(before[ARRIVED])
        ended = sum(int(now[name].since(before.get(name)).count) for name in ENDED_EARLY if name in now)
        self.blocks.append(Block(at_s - before_s, by_bucket(arrived), ended))
        self._strata.add(exposition, at_s - before_s)

    @property
    def history(self) -> History:
        """What was counted since the first look, or since the worker was last started."""
        return History(self.edges, tuple(self.blocks))

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """The same by stratum; none where the engine does not count so."""
        return self._strata.strata(self.edges)
