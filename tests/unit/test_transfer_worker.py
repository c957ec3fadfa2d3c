"""What a transfer worker owes to the writes of a chunk that it could not send, with real executors and no engine."""

import queue
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from serving.transfer import worker
from serving.transfer.statuses import TRANSFERRING

LONG_S = 30.0


@dataclass
class Chunk:
    """As much of a chunk as the worker and what is around it know."""

    room: int
    staging_counted: bool = False


@dataclass
class Prefill:
    """Mooncake's manager and its worker: for each chunk it submits two writes, and breaks on those of room 7.

    The first of these has begun then, and goes on until the second is called off, or until the room is failed.
    """

    until_called_off: bool
    writes: ThreadPoolExecutor
    request_status: dict[int, int] = field(default_factory=lambda: {7: TRANSFERRING, 8: TRANSFERRING})
    _staging_outstanding: dict[int, int] = field(default_factory=lambda: {7: 0, 8: 0})
    _deferred_ack_poisoned_rooms: set[int] = field(default_factory=set)
    may_end: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)
    begun: list[int] = field(default_factory=list)
    failed: list[tuple[int, str, object]] = field(default_factory=list)

    def conclude_failure(self, *, bootstrap_room: int, failure_reason: str, targets: object) -> None:
        self.failed.append((bootstrap_room, failure_reason, "told" if targets is None else targets))
        self.may_end.set()

    def write(self, room: int) -> None:
        self.begun.append(room)
        self.has_begun.set()
        assert self.may_end.wait(LONG_S)

    def transfer_worker(self, chunks: "queue.Queue[Chunk | None]", writes: Executor) -> None:
        while (chunk := chunks.get()) is not None:
            self._staging_outstanding[chunk.room] += 1
            chunk.staging_counted = True
            submitted = [writes.submit(self.write, chunk.room) for _ in range(2)]
            if chunk.room == 7:
                self._deferred_ack_poisoned_rooms.add(chunk.room)
                assert self.has_begun.wait(LONG_S)
                if self.until_called_off:
                    submitted[1].add_done_callback(lambda _: self.may_end.set())
                raise KeyError("no such peer")
            for write in submitted:
                write.result(LONG_S)
            self._staging_outstanding[chunk.room] -= 1


def worked(*, until_called_off: bool) -> Prefill:
    """What became of a prefill whose worker got a chunk that it cannot send, and then one that it can."""
    chunks: queue.Queue[Any] = queue.Queue()
    for chunk in (Chunk(7), Chunk(8), None):
        chunks.put(chunk)
    with ThreadPoolExecutor(1) as writes:
        prefill = Prefill(until_called_off, writes)
        worker.work(Prefill.transfer_worker, prefill, chunks, writes)
    return prefill


def test_a_write_that_has_not_begun_is_called_off_and_one_that_has_is_waited_for() -> None:
    prefill = worked(until_called_off=True)
    assert prefill.begun == [7, 8, 8]
    assert [(room, told) for room, _, told in prefill.failed] == [(7, "told")]
    assert "KeyError: 'no such peer'" in prefill.failed[0][1]


def test_a_chunk_whose_writes_are_over_counts_as_running_no_more() -> None:
    """Else prefill would keep its pages for ever, and decode would never hear that nothing is written."""
    prefill = worked(until_called_off=True)
    assert prefill._staging_outstanding == {7: 0, 8: 0}
    assert prefill._deferred_ack_poisoned_rooms == set()


def test_a_write_that_goes_on_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SETTLE_WITHIN_S", 0.05)
    prefill = worked(until_called_off=False)
    assert prefill._staging_outstanding == {7: 1, 8: 0}
    assert prefill._deferred_ack_poisoned_rooms == {7}
    assert [(room, told) for room, _, told in prefill.failed] == [(7, [])]
