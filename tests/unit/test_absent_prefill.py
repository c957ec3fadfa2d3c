"""Decode ends what waits for a prefill that is away, and goes on looking for one that is only busy."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from serving.peers import absent

ROOM = 7


class Manager:
    """What a receiver tells its manager."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def record_failure(self, room: int, reason: str) -> None:
        self.reasons[room] = reason


class Receiver:
    """A receiver that nothing has been asked for yet."""

    def __init__(self, manager: Manager) -> None:
        self.kv_mgr, self.bootstrap_room, self.ended = manager, ROOM, False

    def abort(self) -> None:
        self.ended = True
        self.kv_mgr.record_failure(self.bootstrap_room, "Aborted by AbortReq.")


def request(*, is_rebootstrap: bool = False) -> Any:
    receiver = Receiver(Manager())
    return SimpleNamespace(kv_receiver=receiver, req=SimpleNamespace(rid="a"), is_rebootstrap=is_rebootstrap)


class Queue:
    """Decode's queue, whose looks all fail; `looks` says at which of them SGLang does look."""

    def __init__(self, looks: tuple[bool, ...] = (True,) * 20) -> None:
        self._ensure_last_attempt_time: dict[str, float] = {}
        self._ensure_retry_count: dict[str, int] = {}
        self._looks = iter(looks)
        self._now_s = 0.0

    def ensure(self, waiting: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], list[Any]]:
        def original(_: Any, addr_to_reqs: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], list[Any]]:
            self._now_s += 1
            if next(self._looks):
                for address in addr_to_reqs:
                    self._ensure_last_attempt_time[address] = self._now_s
                    self._ensure_retry_count[address] = self._ensure_retry_count.get(address, 0) + 1
            return {}, [one for requests in addr_to_reqs.values() for one in requests]

        return absent.ensure_prefill_info(original, self, waiting)


@contextmanager
def bootstrap_server(*statuses: int) -> Iterator[str]:
    """One that answers with these, one after the other, and the last of them for ever."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith("/route?prefill_dp_rank=-1")
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nobody listens, and nobody else will meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_where_nobody_listens_the_request_ends_at_the_first_look_and_says_why(closed: str) -> None:
    one = request()
    assert Queue().ensure({closed: [one]}) == ({}, [])
    assert one.kv_receiver.ended
    assert one.kv_receiver.kv_mgr.reasons[ROOM] == (
        f"nobody listens at prefill's bootstrap server {closed}: prefill is not running, "
        "so its half of this request is lost; send the request again"
    )


def test_a_prefill_that_starts_is_believed_the_second_time() -> None:
    one, queue = request(), Queue()
    with bootstrap_server(503) as address:
        assert queue.ensure({address: [one]}) == ({}, [one])
        assert not one.kv_receiver.ended
        assert queue.ensure({address: [one]}) == ({}, [])
    assert "is starting: not all of its ranks have registered" in one.kv_receiver.kv_mgr.reasons[ROOM]


@pytest.mark.parametrize("statuses", [(503, 200), (200,), (500,), (404,)])
def test_any_other_answer_is_looked_for_again(statuses: tuple[int, ...]) -> None:
    one, queue = request(), Queue()
    with bootstrap_server(*statuses) as address:
        for _ in range(5):
            assert queue.ensure({address: [one]}) == ({}, [one])
    assert not one.kv_receiver.ended


def test_a_busy_prefill_is_not_away(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent, "LOOK_WITHIN_S", 0.1)
    one, queue = request(), Queue()
    for _ in range(3):
        assert queue.ensure({silent: [one]}) == ({}, [one])
    assert not one.kv_receiver.ended


def test_one_that_is_away_ends_nothing_of_another(closed: str) -> None:
    lost, kept = request(), request()
    with bootstrap_server(200) as address:
        assert Queue().ensure({closed: [lost], address: [kept]}) == ({}, [kept])
    assert lost.kv_receiver.ended
    assert not kept.kv_receiver.ended


def test_where_sglang_does_not_look_neither_do_we(closed: str) -> None:
    one, queue = request(), Queue(looks=(False, False, True))
    assert queue.ensure({closed: [one]}) == ({}, [one])
    assert queue.ensure({closed: [one]}) == ({}, [one])
    assert queue.ensure({closed: [one]}) == ({}, [])


def test_a_request_whose_prefill_is_still_to_be_asked_waits_for_it(closed: str) -> None:
    again, ended = request(is_rebootstrap=True), request()
    ended.kv_receiver = None
    assert Queue().ensure({closed: [again, ended]}) == ({}, [again])
    assert not again.kv_receiver.ended
