"""Reading what engines say of themselves, in every spelling that there has been."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.inflight.freshness import Freshness
from dsv4ctl.inflight.lines import event_of
from dsv4ctl.inflight.readings import left_of_loads, left_of_metrics, queue_of_load, queues_of_gauge
from dsv4ctl.inflight.sample import Queue
from dsv4ctl.metrics.exposition import Unreadable, parse_exposition
from dsv4ctl.metrics.loads import UnreadableLoads, parse_loads

STAMP = "[2026-11-30 00:28:23 TP0] "
FORGED_ID = "x room=1 state=a age_s=1.2.3 timeout_s=1 rank=tp0/pp0/dp0"
EXPOSITION = """\
# HELP sglang:num_prefill_inflight_queue_reqs The number of requests.
# TYPE sglang:num_prefill_inflight_queue_reqs gauge
sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",model_name="tiny",tp_rank="0",dp_rank="0"} 2.0
sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",model_name="tiny",tp_rank="1",dp_rank="0"} 2.0
sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",model_name="tiny",tp_rank="0",dp_rank="1",priority="1"} 3.0
sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",model_name="tiny",tp_rank="0",dp_rank="1",priority="2"} 1.0
# TYPE sglang:kv_transfer_latency_ms histogram
sglang:kv_transfer_latency_ms_bucket{le="10.0",tp_rank="0"} 4.0
sglang:kv_transfer_latency_ms_bucket{le="+Inf",tp_rank="0"} 9.0
sglang:kv_transfer_latency_ms_count{tp_rank="0"} 9.0
sglang:kv_transfer_latency_ms_sum{tp_rank="0"} 99.0
# TYPE sglang:num_transfer_failed_reqs_total counter
sglang:num_transfer_failed_reqs_total{tp_rank="0"} 1.0
"""
SECTION: dict[str, Any] = {
    "by_state": {"transferring": 1, "waiting_for_input": 2},
    "health_checks": 1,
    "held": 1,
    "settling": 4,
    "oldest_age_s": 7.5,
    "oldest_rid_hash": "5f0c9b1e",
    "since_progress_s": 7.0,
    "timeout_s": 60.0,
    "refreshed_at": 99.0,
    "left_total": {"success": 31, "timeout": 1},
    "fires_total": 1,
}


def load(mode: str = "prefill", inflight: int = 4, **more: Any) -> dict[str, Any]:
    disaggregation = {"mode": mode, f"{mode}_inflight_queue_reqs": inflight}
    return {"timestamp": 100.0, "dp_rank": 0, "disaggregation": disaggregation, **more}


def test_ranks_that_hold_the_same_requests_are_one_and_the_others_are_summed() -> None:
    read = parse_exposition(EXPOSITION)
    assert read.by_dp_rank("num_prefill_inflight_queue_reqs") == {0: 2.0, 1: 4.0}
    assert read.total("num_prefill_inflight_queue_reqs") == 6.0
    assert queues_of_gauge(read) == (Queue("gauge", 0, 2), Queue("gauge", 1, 4))


def test_a_total_beside_the_counts_of_priorities_is_taken_alone() -> None:
    name = "sglang:num_prefill_inflight_queue_reqs"
    rows = "".join(f'{name}{{priority="{priority}"}} {count}\n' for priority, count in (("", 3), ("0", 1), ("5", 2)))
    assert parse_exposition(f"# TYPE {name} gauge\n{rows}").by_dp_rank("num_prefill_inflight_queue_reqs") == {0: 3.0}


def test_an_aggregators_prefix_and_an_older_name_are_read_alike() -> None:
    read = parse_exposition(EXPOSITION.replace("sglang:", "sglang_"))
    assert read.total("num_prefill_inflight_queue_reqs") == 6.0
    older = parse_exposition('sglang:num_prefill_prealloc_queue_reqs{tp_rank="0"} 3\n')
    assert older.total("num_prefill_bootstrap_queue_reqs") == 3.0


def test_absent_is_not_zero() -> None:
    read = parse_exposition('other{a="b"} 1\n')
    assert read.total("num_prefill_inflight_queue_reqs") is None
    assert queues_of_gauge(read) == ()
    assert left_of_metrics(read) == {}
    assert read.buckets("kv_transfer_latency_ms") is None


def test_the_counters_of_what_left() -> None:
    assert left_of_metrics(parse_exposition(EXPOSITION)) == {"transferred": 9.0, "failed": 1.0}


def test_a_histogram_knows_bounds_and_what_was_added() -> None:
    read = parse_exposition(EXPOSITION).buckets("kv_transfer_latency_ms")
    assert read is not None
    assert (read.count, read.quantile_bound(0.4), read.quantile_bound(0.5)) == (9.0, 10.0, float("inf"))
    before = parse_exposition(EXPOSITION.replace('le="10.0",tp_rank="0"} 4', 'le="10.0",tp_rank="0"} 1'))
    assert read.since(before.buckets("kv_transfer_latency_ms")).counts == ((10.0, 3.0), (float("inf"), 0.0))
    assert read.since(None) is read


@pytest.mark.parametrize("text", ["<html>no</html>", "name 1 2 3 4 x"])
def test_what_is_no_exposition_is_said_to_be_none(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_exposition(text)


def test_a_load_of_the_patched_engine_gives_ages_and_one_of_a_stock_engine_a_count() -> None:
    (of_patched,) = parse_loads({"loads": [load(dsv4=SECTION)]})
    queue = queue_of_load(of_patched, 0.5)
    assert queue is not None
    assert (queue.published_at, queue.refreshed_at) == (of_patched.published_at, 99.0)
    assert (queue.source, queue.count, queue.health_checks, queue.held, queue.settling) == ("dsv4", 3, 1, 1, 4)
    assert (queue.oldest_age_s, queue.oldest_id, queue.timeout_s, queue.fires) == (7.5, "5f0c9b1e", 60.0, 1)
    assert queue.written_age_s == pytest.approx(1.5)
    assert left_of_loads([of_patched]) == {"success": 31.0, "timeout": 1.0}
    (of_stock,) = parse_loads({"loads": [load()]})
    assert queue_of_load(of_stock, 0.5) == Queue("loads", 0, 4, written_age_s=0.5)
    assert left_of_loads([of_stock]) == {}


def test_an_empty_queue_has_no_oldest_and_its_figures_may_be_old() -> None:
    empty = {**SECTION, "by_state": {"transferring": 0}, "oldest_rid_hash": "00000000", "refreshed_at": 1.0}
    (read,) = parse_loads({"loads": [load(dsv4=empty)]})
    queue = queue_of_load(read, 0.2)
    assert queue is not None
    assert (queue.count, queue.oldest_id, queue.written_age_s) == (0, None, 0.2)


def test_decode_expects_and_has_no_queue_of_this_kind() -> None:
    waits = {"mode": "decode", "decode_prealloc_queue_reqs": 2, "decode_transfer_queue_reqs": 3}
    (read,) = parse_loads({"loads": [{"timestamp": 1.0, "disaggregation": waits}]})
    assert read.expecting == 5
    assert queue_of_load(read, 0.0) is None
    (unified,) = parse_loads({"loads": [{"timestamp": 1.0}]})
    assert (unified.mode, unified.inflight, unified.expecting) == ("null", None, None)


@pytest.mark.parametrize("document", [None, [], {}, {"loads": 3}, {"loads": [3]}, {"loads": [{"dp_rank": "x"}]}])
def test_what_has_no_loads_is_said_to_have_none(document: object) -> None:
    with pytest.raises(UnreadableLoads):
        parse_loads(document)


def test_an_age_needs_no_clock_of_ours() -> None:
    fresh = Freshness()
    served = "Thu, 01 Jan 1970 00:01:45 GMT"
    assert fresh.age_s(100.0, 7.0, served) == 5.0
    assert fresh.age_s(100.0, 9.0, served) == 7.0
    assert fresh.age_s(101.0, 9.5, None) == 0.5
    assert fresh.age_s(101.0, 20.0, None) == 11.0
    assert Freshness().age_s(100.0, 7.0, None) == 0.0
    assert Freshness().age_s(100.0, 7.0, "no date") == 0.0


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            f"{STAMP}dsv4 inflight timeout rid=a b=c room=5 state=transferring age_s=4.00 timeout_s=4 rank=tp0/pp0/dp1",
            ("fired", 1, "a b=c", 4.0, "transferring", None),
        ),
        (
            "dsv4 inflight timeout rid=a room=5 state=transferring age_s=4.0 timeout_s=4 rank=tp4/pp0/dp1",
            ("fired", 1, "a", 4.0, "transferring", None),
        ),
        (
            "[2026-11-30 00:28:23] Prefill batch, #new-seq: 1, #inflight-req: 3, #optimistic-req: 0",
            ("batch", 0, None, None, None, 3),
        ),
        (
            f"{STAMP}Prefill transfer failed for request rank=0 req.rid='r 1' req.bootstrap_room=5 with exception",
            ("transfer failed", 0, "r 1", None, None, None),
        ),
        (
            f"{STAMP}Receive: 'dsv4 inflight timeout rid=a room=5 state=t age_s=4.0 timeout_s=4 rank=tp0/pp0/dp0'",
            None,
        ),
        (
            f"dsv4 inflight timeout rid={FORGED_ID} room=5 state=transferring age_s=4.0 timeout_s=4 rank=tp0/pp0/dp0",
            (
                "fired",
                0,
                FORGED_ID,
                4.0,
                "transferring",
                None,
            ),
        ),
        ("Decode batch, #running-req: 1", None),
        ("", None),
    ],
)
def test_lines_that_say_something(line: str, found: tuple[object, ...] | None) -> None:
    event = event_of(line)
    said = event and (event.kind, event.dp_rank, event.rid, event.age_s, event.state, event.count)
    assert said == found


SCALARS = st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
ANY_SECTION = st.dictionaries(
    st.sampled_from(
        ["by_state", "left_total", "oldest_age_s", "oldest_rid_hash", "fires_total", "refreshed_at", "held"]
    ),
    VALUES,
)
DISAGGREGATION = st.fixed_dictionaries(
    {}, optional={"mode": st.sampled_from(["prefill", "decode"]) | VALUES, "prefill_inflight_queue_reqs": VALUES}
)
LOAD = st.fixed_dictionaries(
    {},
    optional={
        "dp_rank": VALUES,
        "timestamp": VALUES,
        "disaggregation": DISAGGREGATION | VALUES,
        "dsv4": ANY_SECTION | VALUES,
    },
)


@given(st.fixed_dictionaries({"loads": st.lists(LOAD, max_size=3) | VALUES}))
def test_whatever_an_engine_answers_is_read_or_refused(document: object) -> None:
    try:
        loads = parse_loads(document)
    except UnreadableLoads:
        return
    for load in loads:
        queue = queue_of_load(load, 0.1)
        assert queue is None or queue.count >= 0
    left_of_loads(loads)
