"""Workers are taken out of a router and put in again, and only what it says it has counts."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from dsv4ctl.engine_keys import flag_of
from dsv4ctl.errors import CannotLook, DeadlineExceeded, OperationFailed
from dsv4ctl.restart.proving import registered
from dsv4ctl.restart.router import Registered, RouterWorkers
from dsv4ctl.stack import Worker

PREFILL, DECODE = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Router:
    """Speaks as sgl-router 0.3.2 does: changes are accepted at once, and done `lag` looks later."""

    def __init__(self, lag: int = 0) -> None:
        self.lag = lag
        self.workers = {
            "a": {"id": "a", "url": PREFILL, "worker_type": "prefill", "is_healthy": True, "bootstrap_port": 9},
            "b": {"id": "b", "url": f"{DECODE}@0", "worker_type": "decode", "is_healthy": True, "priority": 70},
        }
        self.asked: list[tuple[str, str, object]] = []
        self.status = 202
        self._due: list[tuple[int, Callable[[], object]]] = []
        self._looks = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        if request.method == "GET":
            self._looks += 1
            for due, do in list(self._due):
                if due <= self._looks:
                    do()
                    self._due.remove((due, do))
            return httpx.Response(200, json={"workers": list(self.workers.values())})
        self.asked.append((request.method, request.url.path, body))
        if self.status != 202:
            return httpx.Response(self.status, text="busy")
        if body is None:
            name = request.url.path.rpartition("/")[2]
            self._due.append((self._looks + self.lag, lambda: self.workers.pop(name, None)))
        else:
            new = {"id": body["url"], "is_healthy": True, **body}
            self._due.append((self._looks + self.lag, lambda: self.workers.update({body["url"]: new})))
        return httpx.Response(202)


@contextmanager
def talking(router: Router) -> Iterator[RouterWorkers]:
    with httpx.Client(transport=httpx.MockTransport(router.answer)) as client:
        yield RouterWorkers(client, "http://127.0.0.1:3", "the router on local", lambda _: None)


def test_a_removal_that_comes_late_does_not_undo_what_is_put_back() -> None:
    router = Router(lag=8)
    with talking(router) as workers:
        was = workers.listed()
        with pytest.raises(DeadlineExceeded):
            workers.remove([PREFILL, DECODE], deadline_s=0.2)
        workers.put_back(was, deadline_s=10)
        for _ in range(20):
            states = {one.base: one.healthy for one in workers.listed()}
        assert states == {PREFILL: True, DECODE: True}


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_what_was_taken_out_is_put_in_as_it_was(lag: int) -> None:
    router = Router(lag)
    with talking(router) as workers:
        was = workers.remove([PREFILL, DECODE], deadline_s=5)
        assert router.workers == {}
        assert [(one.base, one.kind, dict(one.more)) for one in was] == [
            (PREFILL, "prefill", {"bootstrap_port": 9}),
            (DECODE, "decode", {"priority": 70}),
        ]
        workers.add(was, deadline_s=5)
        again = {one.base: (one.kind, dict(one.more)) for one in workers.listed()}
    assert again == {PREFILL: ("prefill", {"bootstrap_port": 9}), DECODE: ("decode", {"priority": 70})}


def test_others_stay_and_what_is_there_is_not_put_in_twice() -> None:
    router = Router()
    with talking(router) as workers:
        assert len(workers.remove([DECODE], deadline_s=5)) == 1
        workers.add([Registered("", PREFILL, "prefill", True, {})], deadline_s=5)
        assert workers.remove([DECODE], deadline_s=5) == ()
    assert [asked[0] for asked in router.asked] == ["DELETE"]


def test_an_acceptance_is_no_deed() -> None:
    router = Router(lag=10**9)
    with talking(router) as workers:
        with pytest.raises(DeadlineExceeded, match="the router on local to let go of"):
            workers.remove([DECODE], deadline_s=0.01)
        with pytest.raises(DeadlineExceeded) as raised:
            workers.add([Registered("", "http://127.0.0.1:8", "decode", True, {})], deadline_s=0.01)
    assert raised.value.why == "http://127.0.0.1:8 is not there"


def test_a_worker_that_is_not_well_is_not_in_use() -> None:
    router = Router()
    router.workers["b"]["is_healthy"] = False
    with talking(router) as workers, pytest.raises(DeadlineExceeded) as raised:
        workers.add([Registered("", DECODE, "decode", True, {})], deadline_s=0.01)
    assert raised.value.why == f"{DECODE} is not well"


def test_a_router_that_says_no_or_nothing_is_named() -> None:
    router = Router()
    router.status = 500
    with talking(router) as workers, pytest.raises(OperationFailed, match="HTTP 500"):
        workers.remove([DECODE], deadline_s=1)
    for answer in (httpx.Response(404), httpx.Response(200, text="<html>"), httpx.Response(200, json={"workers": [1]})):
        with httpx.Client(transport=httpx.MockTransport(lambda _, answer=answer: answer)) as client:
            odd = RouterWorkers(client, "http://127.0.0.1:3", "the router on local", lambda _: None)
            with pytest.raises(CannotLook, match="the router on local"):
                odd.listed()


def test_what_is_put_in_is_what_is_planned_with_what_was_given_before() -> None:
    ports = {"http": 1, "bootstrap": 9}
    prefill = Worker("prefill-0", "prefill", "local", "u", (), {}, "127.0.0.1", 1, ports)
    server = Worker("unified-0", "unified", "local", "u", (), {}, "127.0.0.1", 5, {"http": 5})
    was = Registered("a", PREFILL, "prefill", True, {"priority": 70, "bootstrap_port": 8})
    assert [(one.base, one.kind, dict(one.more)) for one in registered([prefill, server], [was])] == [
        (PREFILL, "prefill", {"priority": 70, "bootstrap_port": 9}),
        ("http://127.0.0.1:5", "regular", {}),
    ]


def test_a_flag_is_found_in_a_command_line() -> None:
    assert flag_of(("python", "--api-key", "k"), "--api-key") == "k"
    assert flag_of(("python", "--api-key=k"), "--api-key") == "k"
    assert flag_of(("python", "--api-key-file"), "--api-key") is None
