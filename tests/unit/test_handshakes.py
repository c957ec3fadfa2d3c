"""What decode told prefill over a connection that broke is told again, over real sockets."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from serving.inflight.told import AGAIN, NIXL_GUARD
from serving.transfer.handshakes import LOOK_EVERY_S, MANY, RECENT_S, Handshakes, Repeater, Sent, _repeat, again, send
from tests.relay import Relay

WITHIN_MS = 5000


class Receiver:
    """Decode's half of a request, as far as the repeater asks it: a socket, and whether it is over."""

    def __init__(self, socket: "zmq.Socket[bytes]", room: int) -> None:
        self.socket, self.lock, self.bootstrap_room = socket, threading.Lock(), room
        self.conclude_state: object | None = None
        self.abort_notified = False

    def _connect_to_bootstrap_server(self, _: object) -> tuple[Any, Any]:
        return self.socket, self.lock


def test_only_what_is_recent_and_still_waited_for_is_repeated() -> None:
    now = 100.0
    handshakes = Handshakes(lambda: now)
    receivers = [SimpleNamespace(conclude_state=None, bootstrap_room=room) for room in range(3)]
    handshakes.note("a", receivers[0], {}, [b"old"])
    now += RECENT_S + 1
    handshakes.note("a", receivers[1], {}, [b"over"])
    handshakes.note("a", receivers[2], {}, [b"waits"])
    handshakes.note("b", receivers[2], {}, [b"elsewhere"])
    receivers[1].conclude_state = "Success"
    assert [sent.message for sent in handshakes.lost("a")] == [[b"waits"]]
    assert [sent.message for sent in handshakes.lost("b")] == [[b"elsewhere"]]


def test_a_repeated_handshake_is_marked_behind_all_that_is_read_and_an_introduction_is_not() -> None:
    marked = again([NIXL_GUARD, b"17", b"host"])
    assert marked[:3] == [NIXL_GUARD, b"17", b"host"]
    assert set(marked[3:-1]) == {b""}
    assert marked[-1] == AGAIN
    assert again([NIXL_GUARD, b"None", b"host"]) == [NIXL_GUARD, b"None", b"host"]


def test_what_is_over_is_forgotten() -> None:
    handshakes = Handshakes(lambda: 0.0)
    for room in range(10 * MANY):
        handshakes.note("a", SimpleNamespace(conclude_state="Success", bootstrap_room=room), {}, [b""])
    assert len(handshakes._sent["a"]) <= MANY


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Repeater:
    """The process's own memory, which begins anew, and no thread: the test looks itself."""
    from serving.transfer import handshakes

    memory = Handshakes()
    repeater = Repeater(memory)
    monkeypatch.setattr(handshakes, "_handshakes", memory)
    monkeypatch.setattr(handshakes, "_repeater", repeater)
    monkeypatch.setattr(repeater, "_begin", lambda: None)
    return repeater


def original(receiver: Receiver, *, bootstrap_info: object, message: list[bytes], operation: str) -> bool:
    del bootstrap_info, operation
    receiver.socket.send_multipart(message)
    return True


def test_a_message_that_went_down_with_its_connection_arrives_once_more(
    context: "zmq.Context[Any]", fresh: Repeater
) -> None:
    prefill = context.socket(zmq.PULL)
    port = prefill.bind_to_random_port("tcp://127.0.0.1")
    relay = Relay(port)
    decode = context.socket(zmq.PUSH)
    try:
        decode.connect(f"tcp://127.0.0.1:{relay.port}")
        rank = {"rank_ip": "127.0.0.1", "rank_port": relay.port}
        first, second = Receiver(decode, 1), Receiver(decode, 2)
        assert send(original, first, bootstrap_info=rank, message=[NIXL_GUARD, b"first"], operation="send_metadata")
        assert prefill.poll(WITHIN_MS)
        assert prefill.recv_multipart() == [NIXL_GUARD, b"first"]
        first.conclude_state = "Success"
        relay.go_deaf()
        # It is deaf from its next turn on.
        assert not prefill.poll(200)
        assert send(original, second, bootstrap_info=rank, message=[NIXL_GUARD, b"second"], operation="send_metadata")
        assert not prefill.poll(300)
        relay.cut()
        relay.hear()
        for _ in range(int(WITHIN_MS / 1000 / LOOK_EVERY_S)):
            fresh.look()
            if prefill.poll(0):
                break
        assert prefill.recv_multipart() == again([NIXL_GUARD, b"second"])
        assert not prefill.poll(300)
    finally:
        relay.stop()
        for socket in (*fresh._monitors.values(), decode, prefill):
            socket.close(linger=0)


def test_behind_an_abort_nothing_is_repeated(context: "zmq.Context[Any]") -> None:
    prefill, decode = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    with prefill, decode:
        decode.connect(f"tcp://127.0.0.1:{prefill.bind_to_random_port('tcp://127.0.0.1')}")
        ended, aborted, waits = (Receiver(decode, room) for room in (1, 2, 3))
        ended.conclude_state, aborted.abort_notified = "Failed", True
        rank = {"rank_ip": "127.0.0.1", "rank_port": 1}
        for receiver in (ended, aborted, waits):
            _repeat(Sent(receiver, rank, [NIXL_GUARD, b"%d" % receiver.bootstrap_room], 0.0))
        assert prefill.poll(WITHIN_MS)
        assert prefill.recv_multipart()[1] == b"3"
        assert not prefill.poll(200)
