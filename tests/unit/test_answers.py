"""What prefill told decode over a connection that broke is told again, as SGLang's sockets are kept and replaced."""

import threading
from typing import Any

import pytest
import zmq

from serving.transfer.answers import RECENT_S, TAG, Answers, send

STATUS = [TAG, b"17", b"4", b"0"]


class Manager:
    """SGLang's cache of sockets, which are names here; `breaks` is one whose connection is gone."""

    def __init__(self) -> None:
        self._socket_cache: dict[str, str] = {}
        self._socket_send_locks = {"decode": threading.Lock()}
        self.sent: list[tuple[str, list[bytes]]] = []
        self.breaks = ""
        self.made = 0

    def _connect(self, endpoint: str, *, is_ipv6: bool = False) -> str:
        del is_ipv6
        if self._socket_cache.get(endpoint, self.breaks) == self.breaks:
            self.made += 1
            self._socket_cache[endpoint] = f"socket {self.made}"
        return self._socket_cache[endpoint]

    def _send_multipart_locked(self, endpoint: str, parts: list[bytes], *, is_ipv6: bool = False) -> None:
        self.sent.append((self._connect(endpoint, is_ipv6=is_ipv6), parts))


@pytest.fixture
def manager() -> Manager:
    return Manager()


def test_a_status_is_repeated_once_when_its_connection_broke(manager: Manager) -> None:
    answers = Answers(manager, lambda: 0.0)
    manager._send_multipart_locked("decode", STATUS)
    answers.note("decode", STATUS, is_ipv6=False)
    answers.look()
    assert len(manager.sent) == 1
    manager.breaks = "socket 1"
    answers.look()
    answers.look()
    assert manager.sent == [("socket 1", STATUS), ("socket 2", STATUS)]


def test_one_whose_socket_was_replaced_by_another_sender_is_repeated(manager: Manager) -> None:
    answers = Answers(manager, lambda: 0.0)
    manager._send_multipart_locked("decode", STATUS)
    answers.note("decode", STATUS, is_ipv6=False)
    manager.breaks = "socket 1"
    manager._send_multipart_locked("decode", [b"other"])
    answers.look()
    assert manager.sent[1:] == [("socket 2", [b"other"]), ("socket 2", STATUS)]


def test_what_was_sent_long_ago_was_heard(manager: Manager) -> None:
    now = 0.0
    answers = Answers(manager, lambda: now)
    manager._send_multipart_locked("decode", STATUS)
    answers.note("decode", STATUS, is_ipv6=False)
    now = RECENT_S + 0.1
    manager.breaks = "socket 1"
    answers.look()
    assert len(manager.sent) == 1


def test_only_a_status_is_remembered_and_a_closed_socket_is_no_end(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "run", lambda _: None)
    calls: list[list[bytes]] = []

    def original(_: Any, __: str, parts: list[bytes], *, is_ipv6: bool) -> None:
        del is_ipv6
        calls.append(parts)
        if len(calls) == 1:
            raise zmq.ZMQError(zmq.ENOTSOCK)

    send(original, manager, "decode", [b"CHUNK_READY"])
    assert calls == [[b"CHUNK_READY"]] * 2
    assert "dsv4_answers" not in manager.__dict__
    send(original, manager, "decode", STATUS)
    assert [sent.parts for sent in manager.__dict__["dsv4_answers"]._sent] == [STATUS]
