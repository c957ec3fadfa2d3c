"""What engines still have, as they say it; one that is ending has nothing that anybody waits for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dsv4ctl.errors import HostUnreachable
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.restart.traffic import Held, drain, in_all, nothing_left, outstanding
from dsv4ctl.stack import Worker

WORKER = Worker("prefill-0", "prefill", "local", "u", (), {}, "127.0.0.1", 1, {"http": 1})
NOW = 1000.0
HOST = LocalHost()


def load(**more: object) -> dict[str, object]:
    queues = {"mode": "prefill", "prefill_inflight_queue_reqs": 2}
    return {
        "dp_rank": 0,
        "timestamp": NOW,
        "num_running_reqs": 1,
        "num_waiting_reqs": 3,
        "disaggregation": queues,
        **more,
    }


def fleet(answer: Callable[[httpx.Request], httpx.Response], run: Callable[..., object] = HOST.run) -> Any:
    host = SimpleNamespace(
        http=lambda timeout_s: httpx.Client(transport=httpx.MockTransport(answer), timeout=timeout_s), run=run
    )
    return {"local": SimpleNamespace(host=host)}


def held(answer: Callable[[httpx.Request], httpx.Response]) -> str:
    (one,) = outstanding(fleet(answer), [WORKER], now=lambda: NOW)
    return str(one)


def test_requests_of_all_queues_are_counted_and_the_oldest_is_known() -> None:
    section = {"oldest_age_s": 12.5}
    said = held(lambda _: httpx.Response(200, json={"loads": [load(dsv4=section)]}))
    assert said == "prefill-0: 6, 2 of them inflight, the oldest for 12.5 s"
    assert held(lambda _: httpx.Response(200, json={"loads": [load(timestamp=NOW - 40)]})).endswith("(as of 40 s ago)")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(503),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"loads": []}),
        httpx.Response(200, json={"loads": [{"dp_rank": 0}]}),
    ],
)
def test_what_cannot_be_read_is_unknown_and_not_nothing(answer: httpx.Response) -> None:
    found = outstanding(fleet(lambda _: answer), [WORKER], now=lambda: NOW)
    assert found[0].requests is None
    assert not nothing_left(found)


def test_an_engine_whose_port_is_closed_is_not_waited_for() -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    slept: list[float] = []
    ended, found = drain(lambda _: outstanding(fleet(refused), [WORKER]), within_s=30.0, sleep=slept.append)
    assert ended
    assert slept == []
    assert str(found[0]) == "prefill-0: 0 (its port is closed)"


def test_an_engine_that_stands_still_is_not_waited_for_beyond_the_time_there_is() -> None:
    allowed: list[float] = []
    slept: list[float] = []

    def stands_still(answer_s: float) -> tuple[Held, ...]:
        allowed.append(answer_s)
        return (Held("decode-0", "decode", None),)

    ended, _ = drain(stands_still, within_s=5.0, sleep=slept.append, clock=lambda: sum(allowed) + sum(slept))
    assert not ended
    assert max(allowed) == 2.0
    assert sum(allowed) + sum(slept) <= 6.0


def test_an_engine_that_gives_no_last_answer_is_told_by_the_one_before() -> None:
    known = Held("prefill-0", "prefill", 3, 2, 4.0)
    idle = Held("decode-0", "decode", 0)
    looks = iter(
        [(known, idle), *[(Held("prefill-0", "prefill", None, why="too late"), Held("decode-0", "decode", None))] * 9]
    )
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    ended, (prefill, decode) = drain(lambda _: next(looks), within_s=1.0, sleep=sleep, clock=lambda: now)
    assert not ended
    assert str(prefill) == "prefill-0: 3, 2 of them inflight, the oldest for 4.0 s (as of 1.0 s ago; now: too late)"
    assert decode.requests is None


def test_a_host_that_cannot_be_asked_is_no_closed_port() -> None:
    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("the way there is cut", request=request)

    def run(*_: object, **__: object) -> object:
        raise HostUnreachable("box: no route")

    (one,) = outstanding(fleet(lost, run), [WORKER])
    assert (one.requests, one.mute, one.why) == (None, False, "the way there is cut")


def test_an_engine_of_a_kind_that_does_not_tell_is_known_for_that() -> None:
    (one,) = outstanding(fleet(lambda _: httpx.Response(404)), [WORKER])
    assert (one.requests, one.mute) == (None, True)
    (busy,) = outstanding(fleet(lambda _: httpx.Response(503)), [WORKER])
    assert (busy.requests, busy.mute) == (None, False)


def test_a_request_of_a_pair_is_one_and_those_of_two_pairs_add_up() -> None:
    pairs = [Held(f"{role}-{number}", role, 3) for role in ("prefill", "decode") for number in (0, 1)]
    assert in_all(pairs) == 6
    assert in_all([Held("decode-0", "decode", None)]) == 0
