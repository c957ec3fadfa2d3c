"""Every decode worker has a transfer queue of its own, and a room's chunks stay in one."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from serving.transfer.queues import QueueByDecode, add_transfer_request


class Manager:
    """A prefill's manager: SGLang's choice of a queue, and workers that are only counted."""

    enable_staging = False

    def __init__(self, queues: int, *, packs: bool = False) -> None:
        self.transfer_queues: Any = [[] for _ in range(queues)]
        self.transfer_infos: dict[int, dict[str, Any]] = {}
        self.workers: list[int] = []
        self._dcp_pack_buffers = [object()] if packs else None

    def transfer_worker(self, _queue: object, _staging: object, number: int) -> None:
        self.workers.append(number)

    def add(self, room: int, chunk: str) -> None:
        """As NIXL's: the sum of the ports decides."""
        number = sum(info.dst_port for info in self.transfer_infos[room].values()) % len(self.transfer_queues)
        self.transfer_queues[number].append(chunk)

    def send(self, room: int, chunk: str, *ports: int) -> None:
        self.transfer_infos[room] = {str(port): SimpleNamespace(endpoint="a", dst_port=port) for port in ports}
        add_transfer_request(Manager.add, self, room, chunk)


@pytest.fixture(autouse=True)
def fast_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's queue, which a list stands for."""
    module = ModuleType("sglang.srt.disaggregation.common.utils")
    module.__dict__["FastQueue"] = list
    monkeypatch.setitem(sys.modules, module.__name__, module)


def chunks(manager: Manager) -> list[list[str]]:
    return list(iter(manager.transfer_queues))


def test_decodes_whose_ports_clash_have_different_queues() -> None:
    manager = Manager(2)
    manager.send(1, "first", 100)
    manager.send(2, "other", 102)
    manager.send(3, "again", 100)
    assert chunks(manager) == [["first", "again"], ["other"]]
    assert manager.workers == []


def test_a_decode_more_than_there_are_queues_gets_one_and_a_worker() -> None:
    manager = Manager(1)
    for room, port in enumerate((100, 101, 102, 101)):
        manager.send(room, f"room {room}", port)
    assert chunks(manager) == [["room 0"], ["room 1", "room 3"], ["room 2"]]
    assert sorted(manager.workers) == [1, 2]


def test_where_workers_have_buffers_of_their_own_none_is_added() -> None:
    manager = Manager(1, packs=True)
    for room, port in enumerate((100, 101)):
        manager.send(room, f"room {room}", port)
    assert chunks(manager) == [["room 0", "room 1"]]


def test_the_ranks_of_one_decode_are_one() -> None:
    manager = Manager(3)
    manager.send(1, "both", 100, 101)
    manager.send(2, "turned round", 101, 100)
    manager.send(3, "one of them", 100)
    assert chunks(manager) == [["both", "turned round"], ["one of them"], []]


def test_staging_and_a_room_that_is_gone_are_left_to_the_engine() -> None:
    manager = Manager(2)
    manager.enable_staging = True
    manager.send(1, "staged", 101)
    assert manager.transfer_queues == [[], ["staged"]]
    manager.enable_staging = False
    seen: list[int] = []
    add_transfer_request(lambda _, room: seen.append(room), manager, 9)
    assert seen == [9]
    assert not isinstance(manager.transfer_queues, QueueByDecode)
