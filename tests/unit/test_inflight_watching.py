"""The pace of a watch, what it comes to, and how it looks."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from dsv4ctl.errors import Interrupted, OperationFailed
from dsv4ctl.hosts.base import LogStream
from dsv4ctl.inflight.collect import PrefillLook
from dsv4ctl.inflight.judge import Judge
from dsv4ctl.inflight.pages import Pages
from dsv4ctl.inflight.readings import hash_of
from dsv4ctl.inflight.report import Story
from dsv4ctl.inflight.sample import Decode, Event, Queue, Sample
from dsv4ctl.inflight.session import has_come
from dsv4ctl.inflight.spans import KEPT, Spans
from dsv4ctl.inflight.view import Board, bar, sparkline, story
from dsv4ctl.inflight.watching import Pace, together, watch
from serving.inflight.watchdog import rid_hash


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Prefill:
    """A worker whose looks take `takes_s` each."""

    clock: Clock
    takes_s: float = 0.0
    times: list[float] = field(default_factory=list)

    def look(self) -> Sample:
        self.times.append(self.clock.now)
        self.clock.now += self.takes_s
        return Sample("p", self.clock.now, self.clock.now, queues=(Queue("dsv4", 0, 0),))


@dataclass
class DecodeSays:
    says: Decode | None
    answers: bool = True

    def look(self) -> Decode | None:
        return self.says


def test_looks_keep_their_pace_and_are_never_quite_regular() -> None:
    clock = Clock()
    prefill = Prefill(clock)
    pace = Pace(1.0, clock, random.Random(1))
    assert len(list(watch([prefill], [], pace, sleep=clock.sleep, count=100))) == 100
    assert prefill.times[-1] == pytest.approx(99.0, abs=0.1)
    steps = {round(later - earlier, 3) for earlier, later in zip(prefill.times, prefill.times[1:], strict=False)}
    assert len(steps) > 20
    assert pace.lost == 0


def test_looks_that_take_too_long_are_left_out_and_counted() -> None:
    clock = Clock()
    prefill = Prefill(clock, takes_s=2.5)
    pace = Pace(1.0, clock, random.Random(1))
    looks = list(watch([prefill], [], pace, sleep=clock.sleep, duration_s=30))
    assert len(looks) == pytest.approx(10, abs=1)
    assert pace.lost == pytest.approx(20, abs=3)


def test_an_interrupted_sleep_ends_the_watch() -> None:
    def sleep(_: float) -> None:
        raise Interrupted("Ctrl-C")

    looks: Iterator[tuple[Sample, ...]] = watch([Prefill(Clock())], [], Pace(1.0), sleep=sleep)
    next(looks)
    with pytest.raises(Interrupted):
        next(looks)


def test_decode_is_known_when_all_of_it_is() -> None:
    assert together([Decode(1, 0.5), Decode(2, 3.0)]) == Decode(3, 3.0)
    assert together([Decode(1, 0.5), None]) is None
    assert together([]) is None
    ((sample,),) = watch([Prefill(Clock())], [DecodeSays(Decode(1, 0.1))], Pace(1.0), sleep=lambda _: None, count=1)
    assert sample.decode == Decode(1, 0.1)


def aged(at_s: float, count: int, age_s: float, request: str = "aa", fires: int = 0) -> Sample:
    queue = Queue("dsv4", 0, count, oldest_age_s=age_s, oldest_id=request, timeout_s=60.0, fires=fires)
    return Sample("p", at_s, at_s, 0.02, (queue,))


def told(*samples: Sample) -> Story:
    judge, found = Judge(), Story()
    for sample in samples:
        found.take(sample, judge.judge(sample))
    return found


def test_a_pin_and_the_fire_that_ended_it_are_told_with_their_ages() -> None:
    report = told(*(aged(float(t), 1, float(t)) for t in range(0, 60, 5)), aged(61.0, 0, 0.0, fires=1)).end(lost=2)
    assert report.outcome == "pinned"
    ((pin,), (fire,)) = (report.pins, report.fires)
    assert (pin.request, pin.oldest_s, pin.ended) == ("aa", 55.0, True)
    assert (fire.request, fire.age_s) == ("aa", 55.0)
    assert (report.looks, report.lost, report.round_trip_median_s) == (13, 2, 0.02)
    words = "\n".join(story(report))
    assert "PINNED for at least 55.0 s: request aa; gone since (seen)" in words
    assert "the watchdog FIRED after 55.0 s: request aa" in words


def test_the_hash_of_a_pinned_request_and_the_id_of_the_one_that_fired_are_brought_together() -> None:
    assert hash_of("agent-7") == f"{rid_hash('agent-7'):08x}"
    pinned = aged(50.0, 1, 50.0, hash_of("agent-7"))
    line = Event("fired", "dsv4 inflight timeout rid=agent-7 ...", rid="agent-7", age_s=60.0)
    report = told(pinned, replace(aged(61.0, 0, 0.0, fires=1), events=(line,))).end()
    assert f"request {hash_of('agent-7')} (agent-7); gone since" in "\n".join(story(report))
    other = replace(line, rid="agent-8")
    report = told(pinned, replace(aged(61.0, 0, 0.0, fires=1), events=(other,))).end()
    assert report.pins[0].rid is None


def test_of_a_very_long_watch_the_last_spans_are_kept_and_all_are_counted() -> None:
    spans = Spans()
    for at in range(5000):
        spans.look("p", at * 3.0, 1)
        spans.look("p", at * 3.0 + (2.0 if at == 7 else 1.0), 1)
        spans.look("p", at * 3.0 + 2.5, 0)
    spans.look("p", 20_000.0, 1)
    assert (len(spans.all()), spans.number("p"), spans.number(), spans.number("q")) == (KEPT + 1, 5001, 5001, 0)
    assert (spans.longest_s("p"), spans.longest_s("q")) == (2.0, 0.0)


def test_two_requests_one_after_the_other_are_two_pins() -> None:
    report = told(aged(20, 1, 20, "aa"), aged(21, 1, 21, "aa"), aged(40, 1, 16, "bb")).end()
    assert [(pin.request, pin.ended) for pin in report.pins] == [("aa", True), ("bb", False)]


def test_what_is_idle_at_the_end_is_healthy_and_what_could_not_be_seen_is_not() -> None:
    assert told(aged(1, 1, 0.5), aged(2, 0, 0.0)).end().outcome == "healthy"
    lost = told(aged(1, 0, 0.0), Sample("p", 2.0, 2.0, failure="refused")).end()
    assert (lost.outcome, lost.failed) == ("could not look", 1)
    assert Story().end().outcome == "could not look"
    suspect = told(aged(1, 1, 7.0)).end()
    assert suspect.outcome == "inconclusive"
    assert "--until pinned" in suspect.doubts[0].settled_by


def test_a_break_in_the_looks_ends_a_span() -> None:
    report = told(aged(1, 1, 0.5), Sample("p", 2.0, 2.0, failure="refused"), aged(3, 1, 0.5)).end()
    assert [(span.began_s, span.last_s, span.ended) for span in report.spans] == [(1, 1, False), (3, 3, False)]
    report = told(aged(1, 1, 0.5), aged(60, 1, 0.5), aged(7200, 1, 0.5)).end()
    assert [(span.began_s, span.last_s, span.ended) for span in report.spans] == [(1, 60, False), (7200, 7200, False)]


class Engine:
    """What an engine answers, one after the other."""

    def __init__(self, *prefilled: "int | None") -> None:
        self.answers = iter(prefilled)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/loads":
            return httpx.Response(404)
        tokens = next(self.answers)
        load = {"timestamp": 1.0, "dp_rank": 0, "disaggregation": {"mode": "prefill", "prefill_inflight_queue_reqs": 0}}
        told = {} if tokens is None else {"total_prefill_uncached_tokens": tokens}
        return httpx.Response(200, json={"loads": [load | told]})


def looked(engine: Engine, looks: int, **more: Any) -> list[Sample]:
    with closing(Pages("http://p", httpx.MockTransport(engine))) as pages:
        look = PrefillLook("p", pages, 0.0, **more)
        return [look.look() for _ in range(looks)]


def test_an_answer_that_leaves_a_counter_out_is_no_restart() -> None:
    assert [sample.started for sample in looked(Engine(10, None, 12, 3, 4), 5)] == ["0", "0", "0", "1", "1"]


def test_a_log_that_cannot_be_followed_does_not_end_the_watch() -> None:
    def refused() -> LogStream:
        raise OperationFailed("the journal of unit x ended", why="not permitted")

    samples = looked(Engine(1, 2), 2, open_log=refused)
    assert [sample.failure for sample in samples] == ["", ""]
    assert samples[1].log_failure == "the journal of unit x ended: not permitted"
    judge, told_of = Judge(), Story()
    for sample in samples:
        told_of.take(sample, judge.judge(sample))
    assert "the log could not be followed at 2 looks: the journal" in "\n".join(story(told_of.end()))


@dataclass
class Log:
    """A log of so many lines."""

    lines: list[str]

    def readline(self, timeout_s: float) -> str | None:
        return self.lines.pop(0) if self.lines else None

    def close(self) -> None:
        """Nothing is open."""


def test_a_fire_is_told_once_however_many_ranks_print_it_and_however_long_the_log_is() -> None:
    def fired(room: int, rank: str) -> str:
        return f"dsv4 inflight timeout rid=r room={room} state=transferring age_s=4.0 timeout_s=4 rank={rank}"

    lines = [*(["Decode batch"] * 3000), fired(1, "tp4/pp0/dp1"), fired(1, "tp5/pp0/dp1"), fired(2, "tp1/pp1/dp0")]
    lines += [fired(1, "tp6/pp1/dp1"), fired(2, "tp0/pp0/dp0"), fired(3, "tp0/pp0/dp0")]
    log = Log(lines)
    (sample, later) = looked(Engine(1, 2), 2, open_log=lambda: log)
    assert [(event.dp_rank, event.room) for event in sample.events] == [(1, "1"), (0, "2"), (0, "3")]
    assert not later.events


def test_what_a_watch_waits_for() -> None:
    judge = Judge()
    idle, flowing = judge.judge(aged(1, 0, 0.0)), judge.judge(aged(2, 1, 0.1))
    assert has_come("idle", idle)
    assert not has_come("idle", [*idle, *flowing])
    assert not has_come("idle", [])
    assert has_come("pinned", judge.judge(aged(3, 1, 30.0)))
    assert not has_come(None, idle)


def test_the_picture() -> None:
    assert sparkline([0, 1, 2, None, 4]) == " ▂▄·█"
    assert bar(30.0, 60.0) == "████░░░░ 60 s"
    assert (bar(5.0, 0.0), bar(5.0, None), bar(900.0, 60.0)) == ("off", "unknown", "████████ 60 s")
    board, judge = Board(), Judge()
    for sample in (aged(1, 0, 0.0), aged(30, 1, 29.0)):
        board.take(sample, judge.judge(sample))
    ((name, state, count, recent, oldest, used),) = board.rows()
    assert (name, state, count, recent, oldest, used) == ("p", "pinned", "1", " █", "29.0s", "████░░░░ 60 s")
    (evidence,) = board.evidence()
    assert evidence.startswith("p: the oldest has been inflight for 29.0 s")
    assert evidence.endswith("(by dsv4)")
