"""Decode's half: what it keeps back, on SGLang's own decode queue, receivers and pipeline stage, patched."""

import itertools
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from serving.inflight import pipeline, quarantine, settle
from serving.peers import line
from serving.peers.prefill import PrefillWatch
from tests.inflight_rooms import HERE, Unseen, manager_of

from sglang.srt.disaggregation.base import KVPoll  # isort: skip  # tests.inflight_rooms quiets its warnings first
from sglang.srt.disaggregation.decode import DecodeRequest, DecodeTransferQueue  # isort: skip
from sglang.srt.disaggregation.nixl.conn import NixlKVManager, NixlKVReceiver  # isort: skip
from sglang.srt.disaggregation.utils import DisaggregationMode  # isort: skip
from sglang.srt.managers.schedule_batch import ReqKvInfo  # isort: skip
from sglang.srt.managers.scheduler_pp_mixin import SchedulerPPMixin  # isort: skip

PATIENCE_S = 0.05
"""In place of the 30 s after which SGLang frees without an answer."""
ADDRESS = "prefill:1"
_rooms = itertools.count(2_000_000)


class Decode(SchedulerPPMixin):  # type: ignore[misc]  # it ships no types
    """SGLang's queue of transfers to one decode rank, of an engine with so many stages, of which it is the first."""

    enable_hisparse = enable_decode_hicache = False

    def __init__(self, *, stages: int = 1, group: Any = None, rank_port: int = 1) -> None:
        quarantine.here, settle.here = quarantine.Quarantine(), None
        self.group = group or dist.group.WORLD
        self.attn_tp_cpu_group = self.attn_cp_cpu_group = self.group
        self.pp_group = SimpleNamespace(world_size=stages, is_first_rank=True)
        self.metrics_reporter = SimpleNamespace(enable_metrics=False)
        self.metrics_collector_context = SimpleNamespace(current_scheduler_metrics_enabled=False)
        self.output_streamer, self.tree_cache = self, self
        self.waiting_queue: list[Any] = []
        self.released: list[str] = []
        self.rank_port = rank_port
        self.manager = self._manager()
        self.disagg_decode_transfer_queue = self._queue()

    def _manager(self) -> Any:
        manager = manager_of(NixlKVManager, DisaggregationMode.DECODE)
        manager.addr_to_rooms_tracker, manager.prefill_response_tracker = defaultdict(set), {}
        manager.required_prefill_response_num_table = {}
        manager.connection_lock, manager.connection_pool = threading.Lock(), {}
        manager.prefill_info_table, manager.heartbeat_failures = {}, {}
        manager._deferred_abort_ack_tracker, manager._deferred_abort_generation = {}, 0
        manager.local_ip, manager.rank_port = HERE, 1
        manager.waiting_timeout = 300
        return manager

    def _queue(self) -> Any:
        queue = object.__new__(DecodeTransferQueue)
        queue.queue, queue._deferred_releases = [], []
        queue.gloo_group, queue.tp_rank, queue.scheduler, queue.tree_cache = self.group, 0, self, self
        queue.enable_staging, queue.enable_deferred_kv_release = False, True
        queue.deferred_kv_release_timeout = PATIENCE_S
        queue.req_to_metadata_buffer_idx_allocator = SimpleNamespace(free=lambda _: None)
        queue.metadata_buffers = SimpleNamespace(
            bootstrap_room=torch.ones(8, 1, dtype=torch.int64), clear_slot=lambda _: None
        )
        queue._commit_transfer_to_req = lambda _: None  # it copies the first token out of real buffers
        return queue

    def claim_kv_row(self, request: Any) -> bool:
        """The release of a request's pages: what SGLang asks of its cache first."""
        self.released.append(request.rid)
        request.kv.req_pool_idx = None
        request.kv.mark_kv_released()
        return True

    def unlock(self, *_: Any) -> None: ...

    def finish(self, *_: Any) -> None: ...

    def stream_output(self, *_: Any) -> None: ...

    def enters(self, rid: str = "request") -> Any:
        """A request whose pages were named to prefill."""
        room = next(_rooms)
        receiver = NixlKVReceiver(self.manager, ADDRESS, room)
        receiver.bootstrap_infos = [{"rank_ip": HERE, "rank_port": self.rank_port}]
        receiver.init_time = time.time()
        self.manager.update_status(room, KVPoll.WaitingForInput)
        request = SimpleNamespace(
            rid=rid,
            bootstrap_room=room,
            bootstrap_host=HERE,
            origin_input_ids=[0],
            return_logprob=False,
            finished_reason=None,
            cache_request_handle=None,
            kv=ReqKvInfo(req_pool_idx=1, kv_allocated_len=1),
            lock=None,
            time_stats=Unseen(),
        )
        entry = DecodeRequest(req=request, kv_receiver=receiver, metadata_buffer_index=len(self.queue))
        self.disagg_decode_transfer_queue.add(entry)
        return entry

    @property
    def queue(self) -> list[Any]:
        """What waits for its KV."""
        found: list[Any] = self.disagg_decode_transfer_queue.queue
        return found

    def fails(self, entry: Any) -> None:
        """Its transfer fails on this rank."""
        self.manager.record_failure(entry.req.bootstrap_room, "it broke")
        self.manager.update_status(entry.req.bootstrap_room, KVPoll.Failed)

    def is_acknowledged(self, entry: Any) -> None:
        """The only prefill rank says that it writes nothing more for it."""
        room = entry.req.bootstrap_room
        self.manager.note_abort_ack(room, 0, self.manager._deferred_abort_ack_tracker[room].generation)

    def ended_here(self) -> list[str]:
        """What this stage of a pipeline says has ended on it."""
        return list(self._pp_pd_get_decode_transferred_ids())

    def acts_on(self, names: list[str] | None) -> Any:
        """One pass with the list that all stages agreed on: what the next stage gets of it."""
        return self.process_decode_transfer_queue(names)

    def passes(self) -> None:
        """One pass of an engine without a pipeline."""
        self.disagg_decode_transfer_queue.resolve_deferred_releases()
        self.disagg_decode_transfer_queue.pop_transferred()

    @property
    def held(self) -> int:
        """How many have ended and have their pages still."""
        return int(self.disagg_decode_transfer_queue.num_pending_deferred_releases())


def what_stages_agree_on() -> Any:
    """Two that failed, one that has arrived and one that waits, on a decode stage: what it passes on, and frees."""
    decode = Decode(stages=2)
    one, two = decode.enters("one"), decode.enters("two")
    arrived, waits = decode.enters("arrived"), decode.enters("waits")
    for entry in (one, two):
        decode.fails(entry)
    decode.manager.update_status(arrived.req.bootstrap_room, KVPoll.Success)
    ended = decode.ended_here()
    idle = decode.acts_on(None)
    # Another stage has the KV of the one that waits here, and the one before it had one that is not known here.
    agreed = [*ended, waits.req.rid, "unknown here"]
    said: dict[str, Any] = {
        "ended": ended,
        "without a list": [idle, [entry.req.rid for entry in decode.queue]],
        "passed on": decode.acts_on(agreed),
        "waits": [entry.req.rid for entry in decode.queue],
        "runs": [request.rid for request in decode.waiting_queue],
        "held": [decode.held, list(decode.released)],
    }
    time.sleep(PATIENCE_S)
    said["after the engine's patience"] = [decode.ended_here(), decode.acts_on([]), decode.held]
    for entry in (two, one):
        decode.is_acknowledged(entry)
        mark = decode.ended_here()
        said[f"{entry.req.rid} is acknowledged"] = {
            "said": [name.startswith(pipeline.SETTLED) for name in mark],
            "not agreed on yet": [decode.acts_on([]), decode.held],
            "passed on": decode.acts_on(mark) == mark,
            "released": list(decode.released),
            "held": decode.held,
        }
    return said


@contextmanager
def silent(port: int) -> Iterator[None]:
    """As long as this lasts, who listens there with the shortest backlog answers no new connection."""
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex((HERE, port))
    try:
        yield
    finally:
        for filler in fillers:
            filler.close()


@contextmanager
def sooner() -> Iterator[None]:
    """With all waits cut short."""
    with (
        mock.patch.object(line, "CONNECT_WITHIN_S", 0.02),
        mock.patch.multiple(quarantine, ASK_AGAIN_S=PATIENCE_S, LOST_S=PATIENCE_S),
    ):
        yield


def a_prefill_that_falls_silent() -> Any:
    """Its connection is lost and it answers no other, while its transfer may go on: what becomes of decode's pages.

    Then it ends, which a refused connection shows.
    """
    with socket.create_server((HERE, 0), backlog=0) as listener, sooner():
        port = listener.getsockname()[1]
        decode = Decode(rank_port=port)
        decode.manager.connection_pool[f"{ADDRESS}_0_0_0"] = [{"rank_ip": HERE, "rank_port": port}]
        watch = PrefillWatch(decode.manager)

        def later(looks: int) -> list[Any]:
            for _ in range(looks):
                watch.look()
            time.sleep(PATIENCE_S)
            decode.passes()
            return [decode.held, list(decode.released)]

        request = decode.enters()
        watch.look()
        connection, _ = listener.accept()
        decode.fails(request)
        decode.passes()
        said = {"alive": later(2)}
        with silent(port):
            # So it ends at this side at once, as when something on the way has forgotten it.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            said["silent"] = later(line.SILENCES + 2)
            said["new requests go elsewhere"] = [not decode.manager.connection_pool]
            said["silent for long"] = later(3 * line.SILENCES)
        listener.close()
        said["ended"] = later(4)
    return said


SCENES: tuple[Callable[[], Any], ...] = (what_stages_agree_on, a_prefill_that_falls_silent)
