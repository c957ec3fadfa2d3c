"""From an engine's own words to a queue: which figure is taken, and from where."""

import hashlib
import math
from collections.abc import Mapping, Sequence

from dsv4ctl.inflight.sample import Queue
from dsv4ctl.metrics.exposition import Exposition
from dsv4ctl.metrics.loads import Load
from dsv4ctl.printable import printable

GAUGE = "num_prefill_inflight_queue_reqs"
DWELL = "dsv4_inflight_dwell_seconds"

# Every way out of the queue that a stock engine counts, by its counter; a health check is in none of them.
ABORTED = "aborted"
_LEFT = {
    "transferred": "kv_transfer_latency_ms_count",
    "failed": "num_transfer_failed_reqs_total",
    ABORTED: "num_aborted_requests_total",
}


def queue_of_load(load: Load, written_age_s: float | None) -> Queue | None:
    """A prefill rank's queue by its load: the patched engine's section where it has a whole one, else the bare count.

    None for a load that is not prefill's.
    """
    if load.inflight is None or load.mode != "prefill":
        return None
    section = load.dsv4
    by_state = {printable(str(state)): int(count) for state, count in section.get("by_state", {}).items()}
    count = sum(by_state.values())
    if not by_state or (count and "oldest_age_s" not in section):
        return Queue("loads", load.dp_rank, load.inflight, written_age_s=written_age_s)
    if count and "refreshed_at" in section and load.published_at is not None and written_age_s is not None:
        # Figures of an empty queue are written when it becomes empty, and stay as they are.
        written_age_s += max(0.0, load.published_at - float(section["refreshed_at"]))
    return Queue(
        source="dsv4",
        dp_rank=load.dp_rank,
        count=count,
        health_checks=int(section.get("health_checks", 0)),
        written_age_s=written_age_s,
        oldest_age_s=_number(section, "oldest_age_s"),
        oldest_id=printable(str(section["oldest_rid_hash"])) if count and "oldest_rid_hash" in section else None,
        since_progress_s=_number(section, "since_progress_s"),
        by_state=by_state,
        held=int(section.get("held", 0)),
        settling=int(section.get("settling", 0)),
        timeout_s=_number(section, "timeout_s"),
        fires=int(section["fires_total"]) if "fires_total" in section else None,
        left=float(sum(section["left_total"].values())) if "left_total" in section else None,
        published_at=load.published_at,
        refreshed_at=_number(section, "refreshed_at"),
    )


def left_of_loads(loads: Sequence[Load]) -> dict[str, float]:
    """How many requests have left the queues since the start, by outcome; empty where loads do not say so."""
    left: dict[str, float] = {}
    for load in loads:
        for outcome, count in (load.dsv4.get("left_total") or {}).items():
            left[str(outcome)] = left.get(str(outcome), 0.0) + float(count)
    return left


def left_of_metrics(exposition: Exposition) -> dict[str, float]:
    """The same from a stock engine's counters; only those that there are."""
    totals = {way: exposition.total(name) for way, name in _LEFT.items()}
    return {way: total for way, total in totals.items() if total is not None and math.isfinite(total)}


def left_by_rank(exposition: Exposition) -> dict[int, float]:
    """The same by data-parallel rank, where its counters name any."""
    found: dict[int, float] = {}
    for way, name in _LEFT.items():
        for rank, total in exposition.by_dp_rank(name).items() if way != ABORTED else ():
            found[rank] = found.get(rank, 0.0) + total
    return found if len(found) > 1 else {}


def queues_of_gauge(exposition: Exposition) -> tuple[Queue, ...]:
    """The queues by SGLang's own gauge, by rank; none where it has no such series, or what it says is no number."""
    ranks = exposition.by_dp_rank(GAUGE)
    return tuple(Queue("gauge", rank, int(count)) for rank, count in sorted(ranks.items()) if math.isfinite(count))


def _number(section: Mapping[str, object], name: str) -> float | None:
    value = section.get(name)
    return float(value) if isinstance(value, int | float) else None


def hash_of(rid: str) -> str:
    """How the patched engine shows a request's id in its figures (`rid_hash` in serving/inflight/watchdog.py)."""
    return f"{int.from_bytes(hashlib.blake2s(rid.encode(), digest_size=4).digest(), 'big') or 1:08x}"
