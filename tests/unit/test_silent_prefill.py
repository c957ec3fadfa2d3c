"""A prefill host that vanishes: what it may still write is kept until something listens to nobody there."""

import socket
import threading
from collections import defaultdict
from typing import Any

import pytest

from serving.inflight import quarantine
from serving.peers.line import REFUSALS, SILENCES
from serving.peers.prefill import PrefillWatch

ADDRESS, HOST, PORT = "10.0.0.9:8998", "10.0.0.9", 7001


class Manager:
    """A decode rank's manager, as far as the watch asks it."""

    def __init__(self) -> None:
        self.connection_lock = threading.Lock()
        self.connection_pool: dict[str, Any] = {f"{ADDRESS}_0_0_0": [{"rank_ip": HOST, "rank_port": PORT}]}
        self.addr_to_rooms_tracker: dict[str, set[int]] = defaultdict(set, {ADDRESS: {5}})
        self.failed: list[str] = []

    def _handle_node_failure(self, address: str) -> None:
        self.failed.append(address)
        self.connection_pool.pop(f"{address}_0_0_0", None)


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prefill workers that decode takes for ended."""
    found: list[str] = []

    def prefill_lost(address: str, _: list[int]) -> None:
        found.append(address)

    kept = quarantine.Quarantine()
    monkeypatch.setattr(kept, "prefill_lost", prefill_lost)
    monkeypatch.setattr(quarantine, "here", kept)
    return found


def answers_with(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    def connect(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)


def test_silence_ends_the_use_and_not_the_watch(
    manager: Manager, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = PrefillWatch(manager)
    answers_with(monkeypatch, TimeoutError)
    for _ in range(3 * SILENCES):
        watch.look()
    assert manager.failed == [ADDRESS]
    assert lost == []
    answers_with(monkeypatch, ConnectionRefusedError)
    for _ in range(REFUSALS):
        watch.look()
    assert lost == [ADDRESS]
    for _ in range(SILENCES):
        watch.look()
    assert lost == [ADDRESS]
    assert manager.failed == [ADDRESS]


def test_an_address_that_cannot_be_looked_at_hides_no_other(
    manager: Manager, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.connection_pool["elsewhere:1_0_0_0"] = [{"rank_ip": "no.such.host", "rank_port": 1}]

    def connect(address: tuple[str, int], **_: object) -> socket.socket:
        raise socket.gaierror(-2, "unknown") if address[0] == "no.such.host" else ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    watch = PrefillWatch(manager)
    for _ in range(REFUSALS):
        watch.look()
    assert lost == [ADDRESS]
