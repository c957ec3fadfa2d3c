"""What the engines have counted since they were started: evidence for whoever does not wait for a window.

It is one block, so nothing is known of how its requests hang together, and no bound can be made of it.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook
from dsv4ctl.inflight.readings import DWELL
from dsv4ctl.metrics.exposition import Exposition
from dsv4ctl.tuning.binomial import share_at_most
from dsv4ctl.tuning.bound import CONFIDENCE
from dsv4ctl.tuning.dwells import Block, History, by_bucket, together
from dsv4ctl.tuning.recommend import DAY_S, Cost
from dsv4ctl.tuning.scrapes import ARRIVED, ENDED_EARLY

if TYPE_CHECKING:
    from dsv4ctl.targets import Target
    from dsv4ctl.tuning.control import PrefillEngine


def read_since_start(target: "Target", engines: Sequence["PrefillEngine"]) -> History:
    """All that left the inflight queues of these engines since each was started.

    Raises:
        CannotLook: one does not answer, does not count, or is not there.
    """
    return together([_history_of(engine.metrics(), engine, _age_s(target, engine)) for engine in engines])


def cost_since_start(seconds: float, history: History) -> Cost:
    """What a timeout of so many seconds costs by that: as of independent requests, which they are not quite."""
    longer = history.longer_than(seconds)
    share = share_at_most(longer, history.requests, CONFIDENCE) if history.requests else 1.0
    per_day = share * history.requests / history.seconds * DAY_S
    return Cost(seconds, longer, share, per_day, history.requests, history.seconds)


def _history_of(told: Exposition, engine: "PrefillEngine", age_s: float) -> History:
    arrived = told.buckets(DWELL, outcome=ARRIVED)
    if arrived is None:
        raise CannotLook(
            f"{engine.worker} on {engine.host} does not count how long requests stay in its inflight queue",
            why="it runs SGLang without our plugin, or without --enable-metrics",
            hint="set args.enable-metrics = true, and see `dsv4ctl doctor --only PATCHES_DIFFER`",
        )
    edges = tuple(edge for edge, _ in arrived.counts if math.isfinite(edge))
    early = (told.buckets(DWELL, outcome=outcome) for outcome in ENDED_EARLY)
    ended = sum(int(found.count) for found in early if found is not None)
    return History(edges, (Block(age_s, by_bucket(arrived), ended),))


def _age_s(target: "Target", engine: "PrefillEngine") -> float:
    worker = next(
        worker for host, record in target.records if host == engine.host for worker in record.workers
        if worker.name == engine.worker
    )  # fmt: skip
    age_s = target.fleet[engine.host].supervisor.status(worker.handle).age_s if worker.handle is not None else None
    if age_s is None:
        raise CannotLook(f"how old {engine.worker} on {engine.host} is cannot be told", hint="`dsv4ctl status`")
    return age_s
