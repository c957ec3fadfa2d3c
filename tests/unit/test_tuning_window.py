"""Counters of an engine, looked at again and again, as a history; and what is shown of it."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from dsv4ctl.errors import CannotLook
from dsv4ctl.inflight.collect import DecodeLook
from dsv4ctl.inflight.pages import Pages
from dsv4ctl.metrics.exposition import parse_exposition
from dsv4ctl.timers import timers_of
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import Block, History, together
from dsv4ctl.tuning.recommend import cost_of
from dsv4ctl.tuning.scrapes import Counted, NoHistogram
from dsv4ctl.tuning.session import as_data, in_force
from dsv4ctl.tuning.view import cost_lines, dwell_rows, evidence_lines, timer_rows
from dsv4ctl.tuning.window import Measured, Window, _Prefill

EDGES = (0.1, 1.0)


def exposition(arrived: Sequence[int], timeout: int = 0, aborted: int = 0, *, ranks: int = 1) -> str:
    """As prefill exports it: requests by bucket, and those that were ended early."""
    lines = []
    for rank in range(ranks):
        for outcome, counts in (("success", arrived), ("timeout", (0, 0, timeout)), ("aborted", (0, 0, aborted))):
            below = 0
            for edge, count in zip((*EDGES, "+Inf"), counts, strict=True):
                below += count
                labels = f'outcome="{outcome}",tp_rank="{rank}",le="{edge}"'
                lines.append(f"dsv4_inflight_dwell_seconds_bucket{{{labels}}} {below}")
    return "# TYPE dsv4_inflight_dwell_seconds histogram\n" + "\n".join(lines) + "\n"


def counted(*scrapes: str) -> Counted:
    found = Counted("prefill-0")
    for number, text in enumerate(scrapes):
        found.look(parse_exposition(text), 5.0 * number)
    return found


def test_what_was_counted_between_two_looks_is_a_block() -> None:
    found = counted(exposition((5, 1, 0)), exposition((9, 2, 1), timeout=1, aborted=2), exposition((9, 2, 1), 1, 2))
    assert found.history == History(EDGES, (Block(5.0, (4, 1, 1), 3), Block(5.0, (0, 0, 0), 0)))


def test_ranks_that_hold_the_same_requests_are_counted_once() -> None:
    found = counted(exposition((0, 0, 0), ranks=4), exposition((7, 0, 0), ranks=4))
    assert found.history.requests == 7


def test_a_start_in_the_window_begins_it_anew() -> None:
    found = counted(exposition((50, 0, 0)), exposition((60, 0, 0)), exposition((3, 0, 0)), exposition((4, 0, 0)))
    assert (found.restarts, found.history.requests, len(found.history.blocks)) == (1, 1, 1)


def test_a_stock_engine_counts_nothing() -> None:
    with pytest.raises(NoHistogram):
        counted("# TYPE sglang:x gauge\nsglang:x 1\n")


def test_workers_that_are_looked_at_together_are_one_history() -> None:
    first = History(EDGES, tuple(Block(5.0, (number, 0, 0), 0) for number in range(3)))
    second = History(EDGES, (Block(5.1, (10, 1, 0), 1), Block(5.0, (20, 0, 0), 0)))
    assert together([first, second]).blocks == (Block(5.1, (11, 1, 0), 1), Block(5.0, (22, 0, 0), 0))
    assert together([first, History((0.5,), ())]) == History((), ())


@dataclass
class Stack:
    """Prefill and decode, of which one request a look leaves the queue."""

    timeout_s: float = 60.0
    seen: int = 0
    waiting: int = 0
    asked: list[str] = field(default_factory=list)

    def prefill(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/metrics":
            self.seen += 1
            prompts = f"sglang:prompt_tokens_histogram_sum {self.seen * 1000}\n"
            buckets = "".join(
                f'sglang:prompt_tokens_histogram_bucket{{le="{edge}"}} {self.seen}\n' for edge in ("3000", "+Inf")
            )
            pool = "sglang:max_total_num_tokens 32000\n"
            return httpx.Response(200, text=exposition((self.seen, 0, 0)) + buckets + prompts + pool)
        return httpx.Response(200, json=loads("prefill", {"timeout_s": self.timeout_s}))

    def decode(self, _: httpx.Request) -> httpx.Response:
        self.waiting += 1
        return httpx.Response(200, json=loads("decode", {}, decode_prealloc_queue_reqs=self.waiting % 2))


def loads(mode: str, section: Mapping[str, Any], **queues: int) -> dict[str, Any]:
    disaggregation = {"mode": mode, "prefill_inflight_queue_reqs": 0, **queues}
    return {"loads": [{"timestamp": 1.0, "dp_rank": 0, "disaggregation": disaggregation, "dsv4": dict(section)}]}


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def measured(stack: Stack, seconds: float = 100.0) -> Measured:
    clock = Clock()
    prefill = Pages("http://p", httpx.MockTransport(stack.prefill), clock)
    decode = Pages("http://d", httpx.MockTransport(stack.decode), clock)
    window = Window([_Prefill(prefill, Counted("prefill-0"))], [DecodeLook("decode-0", decode, clock)], clock)
    with closing(prefill), closing(decode):
        return window.measure(seconds, sleep=clock.sleep, told=lambda _: None)


def test_a_window_has_a_block_for_every_five_seconds_and_all_that_the_costs_are_made_of() -> None:
    found = measured(Stack())
    assert [block.requests for block in found.history.blocks] == [1] * 20
    assert found.history.seconds == 100.0
    assert (found.in_force_s, found.restarts) == ({"prefill-0": 60.0}, ())
    assert (found.waiting, found.looks) == (11, 21)
    assert (found.prompt_tokens, found.pool_tokens) == ((1000.0, 3000.0), 32_000.0)


def test_an_engine_without_metrics_is_named() -> None:
    @dataclass
    class Silent(Stack):
        def prefill(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(404)

    with pytest.raises(CannotLook, match="prefill-0 could not be asked for its metrics"):
        measured(Silent())


def test_the_chain_has_the_timeouts_that_are_in_force_and_not_those_of_the_start() -> None:
    timers = (*timers_of("prefill-0", "prefill", {}, ()), *timers_of("decode-0", "decode", {}, ()))
    assert {t.seconds for t in in_force(timers, measured(Stack(timeout_s=30.0))) if t.letter == "T"} == {30.0}
    off = in_force(timers, measured(Stack(timeout_s=0.0)))
    assert {timer.seconds for timer in off if timer.letter == "T"} == {None}
    rows = timer_rows(off)
    assert [row[0] for row in rows] == ["H", "T", "S", "S", "W", "B"]
    assert ["T", "the inflight timeout", "prefill-0", "off", "engine", "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"] in rows


def test_too_little_is_said_with_what_is_missing_and_how_long_that_takes() -> None:
    found = measured(Stack())
    bound = bound_of(found.history)
    assert isinstance(bound, NoBound)
    said = "\n".join(evidence_lines(found, bound))
    assert "20 requests left the queue in 1m40s (20 blocks), 0 of them ended early" in said
    assert "decode had requests waiting for its pages at 11 of 21 looks" in said
    assert (
        "20 requests are worth 20 independent ones (design effect 1.00), and 299 bound the 99% quantile with 95%"
        in said
    )
    assert "280 more requests are needed: 23m20s more at this rate" in said


def test_every_figure_of_a_cost_is_there_to_be_computed_again() -> None:
    found = measured(Stack(), seconds=5000.0)
    bound = bound_of(found.history)
    assert isinstance(bound, Bound)
    first, pin = cost_lines(cost_of(60.0, found.history, bound), found)
    # 1 - 0.05 ** (1 / 1000), one request in five seconds.
    assert first == (
        "T = 60 s would have ended 0 of 1000: 0.299% at most, with 95%; at 0.20 requests/s that is 51.7 false aborts a "
        "day at most (0.00299 x 0.20 x 86400)"
    )
    assert pin == (
        "a pin holds its KV for 60 + 2 s: for the mean prompt of 1000 tokens 3.1% of prefill's 32000 (62000 "
        "token-seconds), for the largest (up to 3000) 9.4% at most"
    )
    assert dwell_rows(found.history) == [["up to 0.1 s", "1000", "0", "0.000%"]]
    data = json.loads(json.dumps(as_data(found, bound, (), cost_of(60.0, found.history, bound))))
    assert data["buckets"][0] == {"up_to_s": 0.1, "requests": 1000}
    assert data["recommended"]["longer"] == 0
