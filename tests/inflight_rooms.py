"""What becomes of rooms that end badly, on SGLang's own managers, senders and prefill queue, patched.

    python -m tests.inflight_rooms

Managers, senders, sockets and control threads are SGLang's; no engine is started, so requests and the pools that they
give back to are stand-ins that write down what is done with them: the real ones hang on a model. It says as JSON, for
each scene, what was seen.
"""

import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
import zmq

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.waiting import wait_until
from serving.inflight import pipeline, quarantine, queue, settle, told
from serving.inflight.report import Inflight, Outcome, State, Stratum
from serving.inflight.watchdog import Watchdog
from serving.patches import registry
from serving.peers.prefill import PrefillWatch
from serving.transfer import handshakes
from serving.transfer.statuses import keep_statuses

warnings.simplefilter("ignore")  # SGLang's, of kernels that this machine has no use for

from nixl._bindings import nixlRemoteDisconnectError  # noqa: E402
from sglang.srt.disaggregation.base import KVPoll  # noqa: E402
from sglang.srt.disaggregation.common.conn import AbortAck  # noqa: E402
from sglang.srt.disaggregation.common.utils import FastQueue  # noqa: E402
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager, MooncakeKVSender  # noqa: E402
from sglang.srt.disaggregation.nixl.conn import NixlKVManager, NixlKVReceiver, NixlKVSender  # noqa: E402
from sglang.srt.disaggregation.prefill import (  # noqa: E402
    PrefillBootstrapQueue,
    SchedulerDisaggregationPrefillMixin,
    maybe_release_metadata_buffer,
)
from sglang.srt.disaggregation.utils import DisaggregationMode, ReqToMetadataIdxAllocator  # noqa: E402
from sglang.srt.managers.schedule_batch import ReqKvInfo  # noqa: E402
from sglang.srt.runtime_context import get_parallel  # noqa: E402

PATCHES = (
    "decode-is-told",
    "decode-quarantine",
    "lost-prefill",
    "inflight-watchdog",
    "peer-reconnect",
    "pipeline-failure",
    "settled-pages",
    "sticky-status",
)
HERE = "127.0.0.1"
WITHIN_S = 10.0
TIMEOUT_S = 10.0
NAMES = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
"""Of SGLang's KVPoll, by value."""
BACKENDS = {"nixl": (NixlKVManager, NixlKVSender), "mooncake": (MooncakeKVManager, MooncakeKVSender)}
_rooms = itertools.count(1)


def manager_of(kind: type[Any], mode: Any = DisaggregationMode.PREFILL) -> Any:
    """A manager with what its senders, receivers and control thread need."""
    manager = object.__new__(kind)
    manager.request_status, manager.failure_records, manager.failure_lock = {}, {}, threading.Lock()
    manager.transfer_infos, manager.req_to_decode_prefix_len, manager.decode_kv_args_table = {}, {}, {}
    manager._zmq_ctx, manager._socket_lock = zmq.Context.instance(), threading.Lock()
    manager._socket_cache, manager._monitor_cache, manager._socket_send_locks = {}, {}, {}
    manager._deferred_ack_targets, manager._deferred_ack_poisoned_rooms = {}, set()
    manager._staging_outstanding = Counter()
    manager.enable_deferred_decode_kv_release = True
    manager.enable_staging = manager.enable_trace = manager.is_mla_backend = manager.is_dummy_cp_rank = False
    manager.enable_all_cp_ranks_for_transfer = False
    manager.disaggregation_mode, manager.transfer_queues = mode, [FastQueue()]
    manager.attn_tp_rank = manager.attn_dp_rank = manager.pp_rank = manager.attn_cp_rank = 0
    manager.pp_size = manager.attn_cp_size = manager._kv_replica_factor = 1
    manager.kv_item_lens_sum, manager.state_item_lens_sum, manager.bootstrap_timeout = 100, 0, 300
    manager.kv_args = SimpleNamespace(engine_rank=0, state_types=[], page_size=1)
    manager.server_args = SimpleNamespace(enable_pd_role_switch=False)
    manager._stopped, manager._worker_threads, manager.sender_trace_module = False, [], None
    keep_statuses(None, manager)
    return manager


class Side:
    """A prefill manager with its control thread, and a decode that it can reach."""

    def __init__(self, backend: str) -> None:
        kind, self._sender = BACKENDS[backend]
        self.is_nixl = backend == "nixl"
        self.manager = manager_of(kind)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.manager.server_socket = context.socket(zmq.PULL)
        port = self.manager.server_socket.bind_to_random_port(f"tcp://{HERE}")
        self._client = context.socket(zmq.PUSH)
        self._client.connect(f"tcp://{HERE}:{port}")
        self._decode = context.socket(zmq.PULL)
        self._decode.setsockopt(zmq.RCVTIMEO, int(WITHIN_S * 1000))
        self.port = self._decode.bind_to_random_port(f"tcp://{HERE}")
        getattr(self.manager, "_start_bootstrap_thread" if self.is_nixl else "start_prefill_thread")()

    def sender(self, room: int) -> Any:
        """A request opens this room."""
        return self._sender(self.manager, f"{HERE}:1", room)

    def asks(self, room: int, *, again: bool = False) -> None:
        """Decode says where the KV of this room goes; `again` for one that it has said before, over NIXL."""
        where = [b"%d" % room, HERE.encode(), b"%d" % self.port, b"peer", b"\0\0\0\0", b"0"]
        rest = [b"1", b"", b"0", b"0"] if self.is_nixl else [b"", b"1", b"0"]
        message = ([told.NIXL_GUARD] if self.is_nixl else []) + where + rest
        self._client.send_multipart(handshakes.again(message) if again else message)

    def until(self, is_so: Callable[[], object]) -> bool:
        """Wait for it; False if it does not become so."""
        try:
            return bool(wait_until(is_so, deadline_s=WITHIN_S, interval_s=0.01, what="the other side to act"))
        except DeadlineExceeded:
            return False

    def asked(self, room: int) -> Any:
        """The sender of a room that decode has asked for."""
        sender = self.sender(room)
        self.asks(room)
        assert self.until(lambda: self.manager.request_status.get(room) == KVPoll.WaitingForInput)
        return sender

    def frames(self) -> list[bytes]:
        """The next message to decode."""
        return self._decode.recv_multipart()

    def heard(self) -> list[Any]:
        """The next status that decode hears: room, status, reason."""
        room, status, _, reason = self.manager.parse_kv_status_message(self.frames())
        return [room, NAMES[status], reason]

    def heard_until_now(self) -> list[list[Any]]:
        """All that decode hears up to a mark that is sent now."""
        mark = next(_rooms)
        self.manager.send_kv_status_message(
            targets=[(HERE, self.port)], bootstrap_room=mark, status=KVPoll.Success, failure_reason=None
        )
        return list(itertools.takewhile(lambda said: said[0] != mark, iter(self.heard, None)))


def an_abort_on_prefill(backend: str) -> Any:
    side, room = Side(backend), next(_rooms)
    sender = side.asked(room)
    sender.abort()
    frames = side.frames()
    parsed = side.manager.parse_kv_status_message(frames)
    sender.abort()
    return {
        "frames": len(frames),
        "last frame": frames[-1].decode(),
        "parsed": [parsed[0] == room, NAMES[parsed[1]], *parsed[2:]],
        "told again": side.heard_until_now(),
        "poll": NAMES[sender.poll()],
        "status": NAMES[side.manager.request_status[room]],
    }


def an_abort_after_the_worker_forgot_where_to(backend: str) -> Any:
    side, room = Side(backend), next(_rooms)
    sender = side.asked(room)
    sender.init(2, 0)
    sender.dsv4_targets = side.manager._room_notify_targets(room)
    side.manager.transfer_infos.pop(room)
    sender.abort()
    said = side.heard()
    return [said[0] == room, *said[1:]]


def a_handshake_after_the_end(backend: str) -> Any:
    side, ended, unknown = Side(backend), next(_rooms), next(_rooms)
    sender = side.asked(ended)
    sender.abort()
    sender.clear()
    at_the_end = side.heard_until_now()
    side.asks(ended)
    side.asks(unknown)
    went_through = side.until(lambda: unknown in side.manager.transfer_infos)
    late = side.heard_until_now()
    opened = ended in side.manager.transfer_infos or ended in side.manager.request_status
    again = side.asked(ended)
    return {
        "at the end": [said[1:] for said in at_the_end],
        "late": [[said[0] == ended, *said[1:]] for said in late],
        "opened": opened,
        "unknown went through": went_through,
        "unknown has a status": unknown in side.manager.request_status,
        "a new request of that number": NAMES[again.poll()],
        "and it is told": side.heard_until_now(),
    }


def a_success_is_not_remembered(backend: str) -> Any:
    side, room = Side(backend), next(_rooms)
    sender = side.asked(room)
    side.manager.conclude_transfer(bootstrap_room=room, status=KVPoll.Success)
    sender.clear()
    return told.here.reason(room)


def a_repeated_handshake(_: str) -> Any:
    """For a room that waits for it, for one that is served, and for one that ended well."""
    side, lost, over = Side("nixl"), next(_rooms), next(_rooms)
    waiting = side.sender(lost)
    side.asks(lost, again=True)
    arrived = side.until(lambda: side.manager.request_status.get(lost) == KVPoll.WaitingForInput)
    side.manager.update_status(lost, KVPoll.Transferring)
    side.asks(lost, again=True)
    sender = side.asked(over)
    side.manager.conclude_transfer(bootstrap_room=over, status=KVPoll.Success)
    sender.poll()
    sender.clear()
    side.asks(over, again=True)
    mark = next(_rooms)
    side.asks(mark)
    side.until(lambda: mark in side.manager.transfer_infos)
    return {
        "arrived": arrived,
        "goes on": NAMES[waiting.poll()],
        "opened": over in side.manager.transfer_infos or over in side.manager.request_status,
        "a new request of that number": NAMES[side.asked(over).poll()],
    }


class Noted(dict[int, Any]):
    """A map that lets `look` look before and after it loses something."""

    look: Callable[[], None]

    def pop(self, key: int, *default: Any) -> Any:
        self.look()
        taken = super().pop(key, *default)
        self.look()
        return taken


def clear_step_by_step(backend: str) -> Any:
    """For each status that a room can be cleared in: what a worker finds at each step, in its order of looking."""
    found: dict[str, list[list[Any]]] = {}
    for status in KVPoll.Failed, KVPoll.Bootstrapping, KVPoll.WaitingForInput, KVPoll.Transferring, KVPoll.Success:
        side, room = Side(backend), next(_rooms)
        sender = side.asked(room) if status != KVPoll.Bootstrapping else side.sender(room)
        manager = side.manager
        manager.transfer_infos.setdefault(room, {"peer": SimpleNamespace(endpoint=HERE, dst_port=side.port)})
        manager.update_status(room, status)
        seen: list[list[Any]] = []

        def look(manager: Any = manager, room: int = room, seen: list[list[Any]] = seen) -> None:
            state = manager.request_status.get(room)
            step = [None if state is None else NAMES[state], room in manager.transfer_infos]
            if step not in seen:
                seen.append(step)

        statuses = Noted(manager.request_status)
        infos = Noted(manager.transfer_infos)
        statuses.look = infos.look = look
        manager.request_status, manager.transfer_infos = statuses, infos
        sender.clear()
        look()
        found[NAMES[status]] = seen
    return found


class Recorded:
    """A Report that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[list[Any]] = []
        self.last: Inflight | None = None

    def show(self, inflight: Inflight) -> None:
        self.last = inflight

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None:
        self.said.append(["left", outcome, round(dwell_s, 3)])

    def fired(self, state: State) -> None:
        self.said.append(["fired", state])

    def unstamped(self) -> None:
        self.said.append(["unstamped"])


class Unseen:
    """The engine's time stamps and traces of a request, which nothing here looks at."""

    def __getattr__(self, name: str) -> Any:
        return Unseen()

    def __call__(self, *_: Any, **__: Any) -> None: ...


class Request:
    """What the queue, the watchdog and the releases need of a request. SGLang's hangs on a model and its pools."""

    return_logprob = return_routed_experts = False
    bootstrap_host, cache_request_handle, finished_reason = HERE, None, None

    def __init__(self, rid: str, sender: Any, metadata_index: int, *, parked: bool) -> None:
        self.rid, self.bootstrap_room, self.disagg_kv_sender = rid, sender.bootstrap_room, sender
        self.pending_bootstrap = parked
        self.origin_input_ids, self.disagg_decode_prefix_len = [0], 0
        self.metadata_buffer_index = metadata_index
        self.kv, self.lock = ReqKvInfo(req_pool_idx=metadata_index, kv_allocated_len=1), None
        self.time_stats = Unseen()


class Prefill(SchedulerDisaggregationPrefillMixin):  # type: ignore[misc]  # it ships no types
    """SGLang's prefill queue with one rank, watched by a clock that is set by hand."""

    scheduler_stage_metrics = None

    def __init__(self, *, ranks: int = 1, first: bool = True, stages: int = 1, timeout_s: float = TIMEOUT_S) -> None:
        self.now_s = 1000.0
        self.manager = manager_of(NixlKVManager)
        self.disagg_prefill_inflight_queue: list[Request] = []
        self.attn_tp_cpu_group = self.attn_cp_cpu_group = dist.group.WORLD
        self.pp_group = SimpleNamespace(world_size=stages)
        self.metrics_reporter = SimpleNamespace(enable_metrics=False)
        self.output_streamer, self.tree_cache = self, self
        self.req_to_metadata_buffer_idx_allocator = self._allocator()
        self.released: list[str] = []
        self.answered: dict[str, Any] = {}
        self.report = Recorded()
        settle.here = settle.Settling(self, lambda: self.now_s)
        with get_parallel().override(attn_tp_size=ranks, attn_tp_rank=0 if first else 1, pp_size=stages):
            self.dsv4_inflight = Watchdog(self, timeout_s, lambda: self.report, lambda: self.now_s)

    def _allocator(self) -> Any:
        allocator, free = ReqToMetadataIdxAllocator(8), ReqToMetadataIdxAllocator.free

        def noted(index: int) -> None:
            self.released.append("metadata")
            free(allocator, index)

        allocator.free = noted
        return allocator

    def claim_kv_row(self, request: Request) -> bool:
        """The release of a request's pages and row: what SGLang asks of its cache first."""
        self.released.append("kv")
        request.kv.req_pool_idx = None
        request.kv.mark_kv_released()
        return True

    def finish(self, *_: Any) -> None: ...

    def _release_aborted_request(self, _: Request) -> None: ...

    def stream_output(self, requests: list[Request], *_: Any) -> None:
        for request in requests:
            reason: Any = request.finished_reason
            self.answered[request.rid] = [getattr(reason, "status_code", None), getattr(reason, "message", "")]

    def enters(self, *statuses: int, rid: str = "", parked: bool = False, seen: bool = True) -> Request:
        """A request whose prefill is done joins the queue; its room has been through these statuses."""
        room = next(_rooms)
        sender = NixlKVSender(self.manager, f"{HERE}:1", room)
        for status in statuses:
            self.manager.update_status(room, status)
        index = self.req_to_metadata_buffer_idx_allocator.alloc()
        request = Request(rid or f"request-{room}", sender, index, parked=parked)
        self.disagg_prefill_inflight_queue.append(request)
        if seen:
            self.dsv4_inflight.entered([request])
        return request

    def passes(self, after_s: float = 0.0) -> list[str]:
        """Two passes of the scheduler, so much later: who left the queue. What is overdue goes with the second."""
        self.now_s += after_s
        return [*self.turns(), *self.turns()]

    def turns(self) -> list[str]:
        """One pass: who left the queue."""
        bootstrap = object.__new__(PrefillBootstrapQueue)
        bootstrap.queue, bootstrap.scheduler_stage_metrics = [], None
        bootstrap.pop_bootstrapped()
        return [request.rid for request in self.process_disagg_prefill_inflight_queue()]

    def looks(self) -> None:
        """The watchdog alone, after a poll that took nothing out."""
        queue = self.disagg_prefill_inflight_queue
        self.dsv4_inflight.before_poll(queue)
        self.dsv4_inflight.after_poll([], queue)
        self.dsv4_inflight.before_poll(queue)

    def agrees_on(self, *names: str) -> list[str]:
        """One pass of a pipeline stage with the list that all stages agreed on: who left the queue."""
        return [request.rid for request in self.process_disagg_prefill_inflight_queue(list(names))]

    def left_of(self, request: Request) -> list[str]:
        """What the manager still has of a request's room."""
        maps = {
            "status": self.manager.request_status,
            "reason": self.manager.failure_records,
            "targets": self.manager.transfer_infos,
            "count": self.manager._staging_outstanding,
        }
        return [name for name, kept in maps.items() if request.bootstrap_room in kept]

    def fails(self, request: Request, reason: str = "it broke") -> None:
        self.manager.conclude_failure(bootstrap_room=request.bootstrap_room, failure_reason=reason)


def a_failed_request_whose_chunk_is_being_sent() -> Any:
    prefill = Prefill()
    request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Transferring)
    outstanding = prefill.manager._staging_outstanding
    outstanding[request.bootstrap_room] = 1
    prefill.fails(request)
    steps = {"done": len(prefill.passes()), "answered": len(prefill.answered), "released": [*prefill.released]}
    maybe_release_metadata_buffer(request, prefill.req_to_metadata_buffer_idx_allocator)
    prefill.passes(5.0)
    assert settle.here is not None
    kept = {"released": [*prefill.released], "settling": len(settle.here), "oldest": settle.here.oldest_s()}
    shown = prefill.report.last
    outstanding[request.bootstrap_room] = 0
    prefill.passes()
    prefill.passes()
    return {
        "at the end": steps,
        "later": kept,
        "shown": shown.settling if shown else None,
        "settled": prefill.released,
        "settling": len(settle.here),
        "left": prefill.left_of(request),
        "buffers": prefill.req_to_metadata_buffer_idx_allocator.available_size(),
    }


def others_that_end() -> Any:
    """What is released in the pass in which a request ends, and what is left of its room."""

    def after(*statuses: int, count: int, fails: bool, poisoned: bool = False) -> Any:
        prefill = Prefill()
        request = prefill.enters(*statuses)
        if fails:
            prefill.fails(request)
        if count:
            prefill.manager._staging_outstanding[request.bootstrap_room] = count
        if poisoned:
            prefill.manager._deferred_ack_poisoned_rooms.add(request.bootstrap_room)
        prefill.passes()
        return [prefill.released, prefill.left_of(request)]

    sent = (KVPoll.WaitingForInput, KVPoll.Transferring)
    return {
        "success": after(*sent, KVPoll.Success, count=0, fails=False),
        "failed": after(*sent, count=0, fails=True),
        "failed, and cannot be waited for": after(*sent, count=1, fails=True, poisoned=True),
    }


def at_its_deadline() -> Any:
    prefill = Prefill()
    request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Transferring)
    second = prefill.enters(KVPoll.WaitingForInput)
    prefill.report.said.clear()
    early = prefill.passes(TIMEOUT_S - 0.01)
    late = prefill.passes(0.01)
    status, message = prefill.answered[request.rid]
    return {
        "early": early,
        "late": late == [request.rid, second.rid],
        "status": int(status),
        "message": message.split(". Request ")[0],
        "fires": prefill.dsv4_inflight.fires,
        "reported": prefill.report.said,
        "left": [*prefill.left_of(request), *prefill.left_of(second)],
    }


def success_on_this_rank() -> Any:
    """Overdue here and a success here, alone and among several ranks, on the rank that answers and on another."""
    said = {}
    for name, ranks, first in (("alone", 1, True), ("answering", 2, True), ("other", 2, False)):
        prefill = Prefill(ranks=ranks, first=first)
        request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Success)
        request.disagg_kv_sender.poll()
        prefill.now_s += TIMEOUT_S
        prefill.looks()
        at_timeout = NAMES[request.disagg_kv_sender.poll()]
        prefill.now_s += 1.0
        prefill.looks()
        message = prefill.dsv4_inflight.message(request) or ""
        said[name] = [at_timeout, NAMES[request.disagg_kv_sender.poll()], "unfinished on another rank" in message]
    return said


def a_pass_that_took_long() -> Any:
    """All is overdue after it: what has arrived here meanwhile, and what has not, with the first pass and the next."""
    prefill = Prefill(ranks=2)
    arrived = prefill.enters(KVPoll.WaitingForInput, KVPoll.Success)
    stuck = prefill.enters(KVPoll.WaitingForInput)
    prefill.now_s += 10 * TIMEOUT_S
    first, second = prefill.turns(), prefill.turns()
    return [first == [arrived.rid], second == [stuck.rid], prefill.dsv4_inflight.fires]


def another_rank_ended_it() -> Any:
    """Failed here without a reason of its own: how it ends, by its age and the number of ranks."""
    said = {}
    for name, ranks, age_s, reason in (
        ("about as old", 2, TIMEOUT_S - 0.5, ""),
        ("younger", 2, TIMEOUT_S - 1.5, ""),
        ("one rank", 1, TIMEOUT_S - 0.5, ""),
        ("a reason here", 2, TIMEOUT_S - 0.5, "it broke"),
    ):
        prefill = Prefill(ranks=ranks)
        request = prefill.enters(KVPoll.WaitingForInput)
        if reason:
            prefill.fails(request, reason)
        else:
            prefill.manager.update_status(request.bootstrap_room, KVPoll.Failed)
        prefill.passes(age_s)
        status, message = prefill.answered[request.rid]
        said[name] = [int(status), message.startswith("inflight timeout"), prefill.report.said[-1][1]]
    return said


def a_parked_request() -> Any:
    prefill = Prefill()
    request = prefill.enters(parked=True)
    prefill.now_s += 100 * TIMEOUT_S
    prefill.looks()
    parked = [prefill.dsv4_inflight.fires, prefill.report.last and prefill.report.last.oldest_age_s]
    request.pending_bootstrap = False
    prefill.manager.update_status(request.bootstrap_room, KVPoll.WaitingForInput)
    early = [prefill.passes(), prefill.passes(TIMEOUT_S - 0.01)]
    return {"parked": parked, "asked for": early, "in the end": prefill.passes(0.01) == [request.rid]}


def an_unstamped_request() -> Any:
    prefill = Prefill()
    request = prefill.enters(KVPoll.WaitingForInput, seen=False)
    first = [prefill.passes(), list(prefill.report.said)]
    ended = [prefill.passes(TIMEOUT_S - 0.01), prefill.passes(0.01) == [request.rid]]
    return {"first": first, "ended": ended}


def failed_on_another_stage() -> Any:
    prefill = Prefill(stages=2)
    request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Success)
    request.disagg_kv_sender.poll()
    left = prefill.agrees_on(request.rid, pipeline.FAILED + request.rid)
    _, message = prefill.answered[request.rid]
    kept = [*prefill.released]
    settled = settle.settled_rooms()
    prefill.agrees_on(f"{pipeline.SETTLED}{request.bootstrap_room}")
    return {
        "left": left == [request.rid],
        "why": pipeline.ELSEWHERE in message,
        "kept": kept,
        "settled here": settled == [request.bootstrap_room],
        "released": prefill.released,
        "left of it": prefill.left_of(request),
    }


def ended_here_after_all_agreed_on_its_success() -> Any:
    """The list that comes back is older than what this stage's watchdog has done since."""
    prefill = Prefill(stages=2)
    request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Success)
    request.disagg_kv_sender.poll()
    prefill.now_s += TIMEOUT_S
    prefill.looks()
    prefill.agrees_on(request.rid)
    return [prefill.answered[request.rid], prefill.released, len(settle.here or ()), prefill.left_of(request)]


def another_timeout() -> Any:
    prefill = Prefill(timeout_s=0.0)
    prefill.enters(KVPoll.WaitingForInput)
    handlers = queue.update_handlers({}, SimpleNamespace(scheduler=prefill))
    (key, handler), *_ = handlers.items()
    off = prefill.passes(1e6)
    refused = 0
    for bad in (-1, "soon", 0.01, True):
        try:
            handler.validate(key, bad)
        except Exception:  # noqa: BLE001 - which one it is belongs to SGLang
            refused += 1
    handler.validate(key, 5)
    handler.apply(key, 5)
    return {"off": off, "refused": refused, "set": len(prefill.passes()), "fires": prefill.dsv4_inflight.fires}


def a_timeout_on_a_lease() -> Any:
    """What is in force after each request to the control path, and as time goes by."""
    prefill = Prefill()
    watchdog = prefill.dsv4_inflight
    said: list[Any] = []

    def asks(**keys: float) -> None:
        handlers = queue.update_handlers({}, SimpleNamespace(scheduler=prefill))
        named = [(f"dsv4_prefill_inflight_timeout{key}".removesuffix("_s"), value) for key, value in keys.items()]
        try:
            for key, value in named:
                handlers[key].validate(key, value)
        except Exception as error:  # noqa: BLE001 - which one it is belongs to SGLang
            said.append(str(error))
            return
        for key, value in named:
            handlers[key].apply(key, value)
        tells()

    def tells() -> None:
        shown = prefill.report.last
        assert shown is not None
        said.append([shown.timeout_s, shown.standing_timeout_s, round(watchdog.lease_left_s(), 3)])

    def goes_by(seconds: float) -> None:
        prefill.passes(seconds)
        tells()

    asks(_lease=5, _s=3, _was=TIMEOUT_S)
    goes_by(4.0)
    asks(_lease=2)
    goes_by(1.5)
    asks(_s=4, _was=TIMEOUT_S)
    request = prefill.enters(KVPoll.WaitingForInput)
    goes_by(0.6)
    asks(_s=3, _lease=30, _was=TIMEOUT_S)
    ended = prefill.passes(2.5)
    asks(_lease=0)
    asks(_lease=0)
    asks(_lease=0, _s=1)
    asks(_lease=0.5)
    asks(_s=3, _lease=30)
    asks(_s=20)
    goes_by(40.0)
    return {"said": said, "ended": ended == [request.rid]}


def taken_back() -> Any:
    """A success that was polled already, of a sender and of a receiver, and of a room that is gone."""
    said = {}
    for name in ("sender", "receiver", "gone"):
        room = next(_rooms)
        manager = manager_of(NixlKVManager)
        if name == "receiver":
            manager.addr_to_rooms_tracker, manager.prefill_response_tracker = defaultdict(set), {}
            poller = NixlKVReceiver(manager, f"{HERE}:1", room)
        else:
            poller = NixlKVSender(manager, f"{HERE}:1", room)
        manager.update_status(room, KVPoll.Success)
        before = NAMES[poller.poll()]
        if name == "gone":
            manager.request_status.pop(room)
        told.take_back(poller)
        said[name] = [before, NAMES[poller.poll()], room in manager.request_status]
    return said


class Agent:
    """A NIXL agent that believes of every peer what it was last told, like the real one of a lost connection."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._known = {"peer"}

    def check_remote_metadata(self, name: str) -> bool:
        return name in self._known

    def remove_remote_agent(self, name: str) -> None:
        self._known.discard(name)
        self.said.append("removed")

    def add_remote_agent(self, metadata: bytes) -> None:
        self._known.add("peer")
        self.said.append("added")


def _raise(error: Exception) -> None:
    raise error


def reloads_after(error: Exception, *, in_doubt: bool, times: int = 1) -> Any:
    """What a NIXL worker does to a peer after this error, and what decode hears, which has aborted the room."""
    side, room = Side("nixl"), next(_rooms)
    side.asked(room)
    manager, peer = side.manager, SimpleNamespace(endpoint=HERE, dst_port=side.port, agent_metadata=b"")
    peer.kv_xfer_segments = None
    manager.agent, manager.decode_kv_args_table = Agent(), {"peer": peer}
    manager._peer_reload_lock, manager._peer_reload_times = threading.Lock(), {}
    manager.prep_handles, manager.prep_handles_slice_dst, manager._prepared_state_plans = {}, {}, {}
    manager._prepare_payload_xfer = manager._prepare_state_xfer = lambda _: None
    manager._staging_outstanding[room] = 1
    infos = manager.transfer_infos[room]
    manager._handle_abort_notification([b"ABORT", b"%d" % room, HERE.encode(), b"%d" % side.port, b"3"])
    if in_doubt:
        manager.poison_deferred_ack_room(room)
    counted = manager._staging_outstanding[room]
    poisoned = room in manager._deferred_ack_poisoned_rooms
    for _ in range(times):
        try:
            _raise(error)
        except Exception:  # noqa: BLE001 - as the worker does
            manager._reload_invalidated_peers(infos)
    heard: list[Any] = []
    if room not in manager._deferred_ack_targets:
        told_of, *status = side.heard()
        ack = AbortAck.from_zmq(side.frames())
        heard = [told_of == room, *status, ack.room == room, ack.generation]
    return {
        "counted": counted,
        "poisoned": poisoned,
        "agent": manager.agent.said,
        "heard": heard,
        "still counted": manager._staging_outstanding[room],
    }


def reconnects() -> Any:
    lost, post = nixlRemoteDisconnectError("gone"), RuntimeError("could not post")
    post.__cause__ = lost
    return {
        "disconnect": reloads_after(lost, in_doubt=False),
        "cause": reloads_after(post, in_doubt=False),
        "handle": reloads_after(RuntimeError("NIXL transfer encountered ERR room=1"), in_doubt=False),
        "other": reloads_after(ValueError("no such index"), in_doubt=False),
        "doubt": reloads_after(ValueError("no such index"), in_doubt=True),
        "again at once": reloads_after(lost, in_doubt=False, times=3),
    }


@contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    """A prefill rank's control socket."""
    with socket.create_server((HERE, 0)) as listener:
        yield listener, listener.getsockname()[1]


def a_prefill_that_is_replaced() -> Any:
    manager = manager_of(NixlKVManager, DisaggregationMode.DECODE)
    manager.connection_lock, manager.connection_pool = threading.Lock(), {}
    manager.prefill_info_table, manager.heartbeat_failures = {}, {}
    manager.addr_to_rooms_tracker, manager.prefill_response_tracker = defaultdict(set), {}
    failures: list[str] = []
    real = manager._handle_node_failure

    def handled(address: str) -> None:
        failures.append(address)
        real(address)

    manager._handle_node_failure = handled
    watch = PrefillWatch(manager)
    with listening() as (first, first_port), listening() as (other, other_port), listening() as (_, new_port):
        rooms = {}
        for address, port in (("prefill:1", first_port), ("prefill:2", other_port)):
            manager.connection_pool[f"{address}_0_0_0"] = [{"rank_ip": HERE, "rank_port": port}]
            rooms[address] = NixlKVReceiver(manager, address, next(_rooms))
        for _ in range(4):
            watch.look()
        before = list(failures)
        held = SimpleNamespace(req=SimpleNamespace(bootstrap_room=rooms["prefill:1"].bootstrap_room, rid="held"))
        held.kv_receiver = rooms["prefill:1"]
        now_s = start = time.monotonic()
        quarantine.here = quarantine.Quarantine(lambda: now_s, lambda _: None)
        first.close()
        for _ in range(4):
            watch.look()
        deadline = start + quarantine.LOST_S
        kept = quarantine.here.postpone([(held, start, deadline, 0, 1)], deadline)
        manager.connection_pool["prefill:1_0_0_0"] = [{"rank_ip": HERE, "rank_port": new_port}]
        for _ in range(4):
            watch.look()
        cached = sorted(manager.connection_pool)
        statuses = {address: NAMES[receiver.poll()] for address, receiver in rooms.items()}
        # Decode drops the other one for its heartbeat alone, as it does with one that is stopped; then it ends.
        real("prefill:2")
        silent = SimpleNamespace(req=SimpleNamespace(bootstrap_room=rooms["prefill:2"].bootstrap_room, rid="silent"))
        silent.kv_receiver = rooms["prefill:2"]
        entry = (silent, start, deadline, 0, 1)
        watch.look()
        stopped = quarantine.here.postpone([entry], deadline)
        other.close()
        for _ in range(4):
            watch.look()
        ended = quarantine.here.postpone([entry], deadline)
    return {
        "before": before,
        "failures": failures,
        "rooms": statuses,
        "reasons": sorted({" ".join(reason.split()[:4]) for reason in manager.failure_records.values()}),
        "may be freed": [found[0][2] == deadline for found in (kept, stopped, ended)],
        "cached": cached,
    }


SCENES: tuple[Callable[[], Any], ...] = (
    a_failed_request_whose_chunk_is_being_sent,
    others_that_end,
    at_its_deadline,
    success_on_this_rank,
    a_pass_that_took_long,
    another_rank_ended_it,
    a_parked_request,
    an_unstamped_request,
    failed_on_another_stage,
    ended_here_after_all_agreed_on_its_success,
    another_timeout,
    a_timeout_on_a_lease,
    taken_back,
    reconnects,
    a_prefill_that_is_replaced,
)
SCENES_OF_A_BACKEND: tuple[Callable[[str], Any], ...] = (
    an_abort_on_prefill,
    an_abort_after_the_worker_forgot_where_to,
    a_handshake_after_the_end,
    a_success_is_not_remembered,
    a_repeated_handshake,
    clear_step_by_step,
)


def apply_patches() -> None:
    """As the plugin does, those of this subject alone."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    registry.apply({}, [patch for patch in registry.discover() if patch.name in PATCHES])
    HookRegistry.apply_hooks()


def play() -> dict[str, Any]:
    """What was seen, by scene."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sizes = ("attn_tp_size", "attn_cp_size", "pp_size", "num_dp_ranks")
    ranks = ("attn_tp_rank", "attn_cp_rank", "tp_rank", "pp_rank", "dp_rank")
    with get_parallel().override(**dict.fromkeys(sizes, 1), **dict.fromkeys(ranks, 0)):
        said = {scene.__name__: scene() for scene in SCENES}
        for of_backend in SCENES_OF_A_BACKEND:
            said[of_backend.__name__] = {backend: of_backend(backend) for backend in BACKENDS}
    return said


def main() -> None:
    """Say what was found."""
    logging.disable(logging.CRITICAL)
    apply_patches()
    failed = 1
    try:
        json.dump(play(), sys.stdout, indent=1)
        sys.stdout.flush()
        failed = 0
    except Exception:  # noqa: BLE001 - whatever it is, it is to be seen
        traceback.print_exc()
    finally:
        os._exit(failed)  # NIXL's threads never end, and are no daemons


if __name__ == "__main__":
    main()
