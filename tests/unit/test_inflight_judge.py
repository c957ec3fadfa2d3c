"""What is said of a queue, sample by sample: by ages where the engine gives them, by counts, and by an old gauge."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from dsv4ctl.inflight.judge import Judge, Limits
from dsv4ctl.inflight.sample import Decode, Event, Queue, Sample
from dsv4ctl.inflight.verdict import Verdict


def patched(at_s: float, count: int = 0, age_s: float = 0.0, request: str = "aa", **more: object) -> Sample:
    """A look at the patched engine."""
    queue = Queue(
        "dsv4", 0, count, 0, 0.1, age_s if count else 0.0, request if count else None, age_s, {"transferring": count},
        timeout_s=60.0, fires=0,
    )  # fmt: skip
    of_queue = {name: value for name, value in more.items() if name in Queue.__dataclass_fields__}
    of_sample = {name: value for name, value in more.items() if name not in of_queue}
    return replace(Sample("p", at_s, at_s, 0.01, (replace(queue, **of_queue),)), **of_sample)  # type: ignore[arg-type]


def stock(at_s: float, count: int, *, left: float | None = 0.0, decode: Decode | None = None) -> Sample:
    """A look at a stock engine's load."""
    gone = {} if left is None else {"transferred": left}
    return Sample("p", at_s, at_s, 0.01, (Queue("loads", 0, count, written_age_s=0.0),), gone, decode, started="0")


def judged(samples: Iterable[Sample], limits: Limits | None = None) -> list[Verdict]:
    judge = Judge(limits)
    return [judge.judge(sample)[0] for sample in samples]


def states(samples: Iterable[Sample]) -> list[str]:
    return [verdict.state for verdict in judged(samples)]


def test_an_age_is_compared_with_the_limit_and_with_half_the_timeout() -> None:
    aged = [patched(age, 1, age) for age in (0.5, 4.9, 5.0, 14.9, 15.0, 30.0)]
    assert states(aged) == ["flowing", "flowing", "suspect", "suspect", "pinned", "pinned"]
    short = [patched(age, 1, age, timeout_s=4.0) for age in (0.5, 0.7, 1.9, 2.0)]
    assert states(short) == ["flowing", "suspect", "suspect", "pinned"]
    off = [patched(age, 1, age, timeout_s=0.0) for age in (14.0, 16.0)]
    assert states(off) == ["suspect", "pinned"]


def test_a_pinned_request_is_the_same_or_a_new_one() -> None:
    first, same, other = judged([patched(20, 1, 20, "aa"), patched(21, 1, 21, "aa"), patched(60, 1, 16, "bb")])
    assert (first.again, same.again, other.again) == (None, True, False)
    assert (same.request, same.oldest_s, same.basis) == ("aa", 21, "seen")


def test_a_fire_is_said_by_the_counter_or_the_line_and_not_by_a_count_that_fell() -> None:
    fell = judged([patched(1, 1, 20), patched(2, 0)])
    assert [verdict.state for verdict in fell] == ["pinned", "idle"]
    counted = judged([patched(1, 1, 59.5, "aa"), patched(2, 0, fires=1)])[1]
    assert (counted.state, counted.request, counted.oldest_s) == ("fired", "aa", 59.5)
    line = Event("fired", "dsv4 inflight timeout rid=r1 ...", rid="r1", age_s=60.02, state="transferring")
    said = judged([patched(1, 1, 59.5, "aa"), patched(2, 0, fires=1, events=(line,))])[1]
    assert (said.state, said.request, said.oldest_s) == ("fired", "r1", 60.02)
    alone = judged([patched(1, 1, 59.5), patched(2, 0, fires=None, events=(line,))])[1]
    assert alone.state == "fired"


def test_a_watch_that_begins_after_fires_has_seen_none() -> None:
    assert states([patched(1, fires=7), patched(2, fires=7)]) == ["idle", "idle"]


def test_an_engine_that_was_restarted_begins_anew() -> None:
    restarted = [patched(1, fires=7, started="0"), patched(5, fires=0, started="1"), patched(6, fires=0, started="1")]
    assert states(restarted) == ["idle", "idle", "idle"]


def test_flow_between_two_looks_at_an_empty_queue_is_seen() -> None:
    through = [patched(1, left=3.0), patched(2, left=9.0), patched(3, left=9.0)]
    assert states(through) == ["idle", "flowing", "idle"]


def test_old_figures_are_stale_and_a_worker_that_does_not_answer_unreachable_on_each_of_its_queues() -> None:
    two = replace(patched(1), queues=(Queue("dsv4", 0, 0), Queue("dsv4", 1, 0)))
    judge = Judge()
    judge.judge(two)
    gone = judge.judge(Sample("p", 2, 2, failure="connection refused"))
    assert [(verdict.dp_rank, verdict.state) for verdict in gone] == [(0, "unreachable"), (1, "unreachable")]
    assert states([patched(1, 1, 3.0, written_age_s=11.0)]) == ["stale"]


def test_what_stays_while_nothing_leaves_is_pinned_also_on_a_stock_engine() -> None:
    verdicts = judged([stock(float(t), 2, left=5.0) for t in range(18)])
    assert [verdict.state for verdict in verdicts[:5]] == ["flowing"] * 5
    assert verdicts[5].state == "suspect"
    last = verdicts[-1]
    assert (last.state, last.basis, last.pinned) == ("pinned", "followed", 2)
    assert last.oldest_s == pytest.approx(17.0)


def test_while_requests_leave_a_count_that_is_never_zero_proves_nothing_at_once() -> None:
    busy = [stock(float(t), 3, left=float(t)) for t in range(120)]
    assert set(states(busy)) == {"flowing"}


def test_decode_that_expects_nothing_or_stands_still_shows_a_pin_of_prefill() -> None:
    orphan = [stock(float(t), 1, left=float(t), decode=Decode(0, 0.1)) for t in range(20)]
    assert states(orphan)[-1] == "pinned"
    expecting = [stock(float(t), 1, left=float(t), decode=Decode(1, 0.1)) for t in range(20)]
    assert states(expecting)[-1] == "flowing"
    busy = [stock(float(t), 5, left=float(t), decode=Decode(2 + t % 2, 0.1)) for t in range(20)]
    last = judged(busy)[-1]
    assert (last.state, last.basis, last.pinned) == ("pinned", "followed", 2)
    moments = [stock(float(t), 5, left=float(t), decode=Decode(4 + t % 2, 0.1)) for t in range(200)]
    assert set(states(moments)) == {"flowing"}
    frozen = [stock(float(t), 1, left=None, decode=Decode(1, float(t), float(t))) for t in range(20)]
    assert states(frozen)[-1] == "pinned"
    # Another decode takes all of them meanwhile.
    one_of_two = [stock(float(t), 5, left=float(t), decode=Decode(5, float(t), 0.1)) for t in range(60)]
    assert set(states(one_of_two)) == {"flowing"}
    flowing = [stock(float(t), 5, left=float(t), decode=Decode(5, float(t), float(t))) for t in range(60)]
    assert "pinned" not in states(flowing)


@pytest.mark.parametrize("interval_s", [1.0, 15.0])
def test_few_looks_at_which_decode_expects_fewer_are_a_coincidence_whatever_the_time_between(interval_s: float) -> None:
    looks = [stock(interval_s * t, 1, left=100.0 * t, decode=Decode(0, 0.1)) for t in range(13)]
    found = judged(looks, Limits(pin_after_s=2.0))
    assert "pinned" not in {verdict.state for verdict in found[:11]}
    assert (found[-1].state, found[-1].basis) == ("pinned", "followed")


@pytest.mark.parametrize("pin_after_s", [2.0, 4.0])
def test_counters_that_are_read_less_often_than_the_queue_do_not_stand_still_in_between(pin_after_s: float) -> None:
    flow = [replace(stock(float(t), 3, left=float(t - t % 5)), left_age_s=float(t % 5)) for t in range(60)]
    assert {verdict.state for verdict in judged(flow, Limits(pin_after_s=pin_after_s))} == {"flowing"}
    stuck = [replace(stock(float(t), 1, left=7.0), left_age_s=float(t % 5)) for t in range(30)]
    assert judged(stuck)[-1].state == "pinned"


def test_an_abort_somewhere_else_does_not_clear_a_pin() -> None:
    looks = [stock(float(t), 1, left=5.0) for t in range(40)]
    looks = [replace(look, left={**look.left, "aborted": float(look.at_s // 10)}) for look in looks]
    assert {verdict.state for verdict in judged(looks)[20:]} == {"pinned"}


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not known"])
@pytest.mark.parametrize(("before", "after"), [(0.2, 1.0), (0.5, 2.0), (0.5, 5.0)])
def test_a_load_that_rises_is_no_pin(before: float, after: float, counted: bool) -> None:
    for seed in range(6):
        rng, stay_s, now_s, requests = random.Random(seed), 0.8, 0.0, list[tuple[float, float]]()
        while now_s < 400:
            now_s += rng.expovariate((before if now_s < 180 else after) / stay_s)
            requests.append((now_s, now_s + rng.lognormvariate(math.log(stay_s) - 0.125, 0.5)))
        looks = []
        for t in range(400):
            read_s = t - t % 5
            gone = float(sum(end <= read_s for _, end in requests)) if counted else None
            inside = sum(begin <= t < end for begin, end in requests)
            looks.append(replace(stock(float(t), inside, left=gone), left_age_s=float(t % 5)))
        assert "pinned" not in set(states(looks)), seed


def test_at_low_load_a_long_run_is_too_unlikely_to_be_flow() -> None:
    quiet = [stock(float(t), int(t % 5 == 0), left=t // 5) for t in range(600)]
    stuck = [stock(600.0 + t, 1 + int(t % 5 == 0), left=120 + t // 5) for t in range(120)]
    verdicts = judged([*quiet, *stuck])
    assert "pinned" not in {verdict.state for verdict in verdicts[:600]}
    first = next(verdict for verdict in verdicts if verdict.state == "pinned")
    assert first.basis == "chance"
    assert first.chance is not None
    assert first.chance <= 1e-6


def test_a_pin_stays_one_until_something_leaves_or_the_queue_is_empty() -> None:
    samples = [stock(float(t), 1, left=5.0) for t in range(18)]
    samples += [stock(18.0, 1, left=6.0), stock(19.0, 0, left=6.0)]
    assert states(samples)[-3:] == ["pinned", "flowing", "idle"]


def test_a_gauge_never_proves_a_pin() -> None:
    frozen = [Sample("p", float(t), float(t), 0.1, (Queue("gauge", 0, 1),)) for t in range(0, 600, 5)]
    verdicts = judged(frozen)
    assert {verdict.state for verdict in verdicts} == {"flowing", "suspect"}
    assert {verdict.basis for verdict in verdicts} == {"unsure"}
    assert "up to 30 s old" in verdicts[0].evidence[1]


def test_a_counter_that_cannot_be_read_any_more_has_not_stood_still() -> None:
    lost = [stock(float(t), 3 + t % 3, left=float(t) if t < 5 else None) for t in range(40)]
    assert "pinned" not in states(lost)


def test_a_rank_that_vanishes_is_said_to_be_unseen_and_its_pin_is_not() -> None:
    both = replace(patched(1), queues=(Queue("dsv4", 0, 0), Queue("dsv4", 1, 1, oldest_age_s=99.0, oldest_id="aa")))
    judge = Judge()
    assert [verdict.state for verdict in judge.judge(both)] == ["idle", "pinned"]
    one, missing = judge.judge(patched(2))
    assert (one.dp_rank, one.state, missing.dp_rank, missing.state) == (0, "idle", 1, "unreachable")


def test_an_engine_that_came_back_begins_to_count_fires_at_none() -> None:
    again = [patched(1, fires=1, started="0"), patched(9, fires=1, started="1"), patched(10, fires=1, started="1")]
    assert states(again) == ["idle", "fired", "idle"]
    by_its_counters = [patched(1, fires=1, left=50.0), patched(9, fires=1, left=3.0)]
    assert states(by_its_counters) == ["idle", "fired"]


def test_each_rank_has_its_own_flow() -> None:
    def two(at_s: float, left: float) -> Sample:
        ranks = (Queue("dsv4", 0, 1, oldest_age_s=0.2, left=left), Queue("dsv4", 1, 0, left=0.0))
        return replace(patched(at_s), queues=ranks, left={"success": left})

    judge = Judge()
    judge.judge(two(1, 5.0))
    assert [verdict.state for verdict in judge.judge(two(2, 9.0))] == ["flowing", "idle"]


def test_what_leaves_a_stock_engine_is_flow_that_was_seen() -> None:
    flowing = judged([stock(1, 3, left=4.0), stock(2, 3, left=6.0)])
    assert [(verdict.state, verdict.basis) for verdict in flowing] == [("flowing", "unsure"), ("flowing", "followed")]


def test_a_fire_is_told_once_whether_its_line_or_its_counter_comes_first() -> None:
    line = Event("fired", "dsv4 inflight timeout rid=r1 ...", rid="r1", age_s=60.0)
    line_first = [patched(1), patched(2, events=(line,)), patched(3, fires=1), patched(4, fires=1)]
    assert states(line_first) == ["idle", "fired", "idle", "idle"]
    counter_first = [patched(1), patched(2, fires=1), patched(3, fires=1, events=(line,)), patched(4, fires=2)]
    assert states(counter_first) == ["idle", "fired", "idle", "fired"]
    assert [verdict.fired for verdict in judged([patched(1), patched(2, fires=3)])] == [0, 3]


def test_a_fire_of_a_rank_that_is_not_shown_is_told_all_the_same() -> None:
    line = Event("fired", "dsv4 inflight timeout rid=r1 ...", dp_rank=3, rid="r1", age_s=60.0)
    assert states([patched(1), patched(2, events=(line,))]) == ["idle", "fired"]


def test_an_empty_queue_says_little_where_decode_is_away_or_stands_still() -> None:
    away, silent, well = judged(
        [
            patched(1, decodes_away=1),
            patched(2, decode=Decode(3, 40.0, 40.0)),
            patched(3, decode=Decode(0, 1.0, 1.0)),
        ]
    )
    assert [verdict.state for verdict in (away, silent, well)] == ["idle", "idle", "idle"]
    assert away.kept_out.startswith("1 decode worker does not answer")
    assert silent.kept_out.startswith("a decode scheduler has published nothing for 40 s")
    assert well.kept_out == ""


def test_how_requests_left_is_said_where_it_was_no_success() -> None:
    before = replace(patched(1), left={"success": 3.0, "failed": 0.0})
    _, said = judged([before, replace(patched(2), left={"success": 4.0, "failed": 2.0})])
    assert said.state == "flowing"
    assert said.evidence == ("requests have left since the last sample, 2 as failed",)


def test_figures_that_are_not_fresh_are_said_to_be_old() -> None:
    fresh, old = judged([patched(1, written_age_s=0.5), patched(9, written_age_s=8.0)])
    assert (fresh.evidence, fresh.as_of_s) == (("nothing is inflight",), 0.5)
    assert (old.evidence, old.as_of_s) == (("nothing is inflight", "as of 8.0 s ago"), 8.0)
