"""What becomes of the threads that all transfers hang on, with the SGLang of this interpreter, after something bad.

    python -m tests.transfer_threads stock|patched

Managers, threads, sockets, queues and executors are real; no engine is started. `patched` applies the patches as an
engine does. It says as JSON, for each bad thing, whether its thread still does its work.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import zmq

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.waiting import wait_until
from serving.patches import registry
from serving.transfer.statuses import BOOTSTRAPPING, FAILED, TRANSFERRING, WAITING_FOR_INPUT

warnings.simplefilter("ignore")  # SGLang's, of kernels that this machine has no use for

from sglang.srt.disaggregation.common.utils import FastQueue, TransferKVChunk  # noqa: E402
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager, TransferInfo  # noqa: E402
from sglang.srt.disaggregation.nixl.conn import NixlKVManager  # noqa: E402

PATCHES = ("abort-message", "control-threads", "sticky-status", "transfer-worker")
WITHIN_S = 5.0
GUARD = b"NixlMsgGuard"
MESSAGES: dict[str, list[bytes]] = {
    "nothing": [],
    "foreign traffic": [b"GET / HTTP/1.1\r\n"],
    "bytes that are no text": [b"\xff\xfe\x00"],
    "an empty message": [b""],
    "a message cut short": [GUARD, b"7"],
    "a room that is no number": [GUARD, b"seven", b"127.0.0.1", b"1", b"agent", b"", b"0", b"1", b"", b"0", b"0"],
    "a peer that cannot be registered": [GUARD, b"None", b"127.0.0.1", b"1", b"agent", *[b"x"] * 20],
    "an abort without a room": [b"ABORT"],
    "an abort": [b"ABORT", b"8", b"127.0.0.1", b"1"],
}


@dataclass(frozen=True)
class Probe:
    """A thread does its work if this room of its manager comes to have this status."""

    manager: Any
    status: int
    room: int = 7

    @property
    def passed(self) -> bool:
        return bool(self.manager.request_status.get(self.room) == self.status)


class Sockets:
    """A manager's `server_socket`, and one that sends to it."""

    def __init__(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.server = context.socket(zmq.PULL)
        port = self.server.bind_to_random_port("tcp://127.0.0.1")
        self.client = context.socket(zmq.PUSH)
        self.client.connect(f"tcp://127.0.0.1:{port}")


def manager_of(kind: type[Any]) -> Any:
    """A prefill manager that has what these threads need on any version, and a room that waits for its decode."""
    manager = object.__new__(kind)
    manager.request_status = {7: BOOTSTRAPPING}
    manager.failure_records = {}
    manager.failure_lock = threading.Lock()
    manager.transfer_infos = {}
    manager.req_to_decode_prefix_len = {}
    manager.decode_kv_args_table = {}
    manager.enable_staging = manager.enable_trace = manager.enable_deferred_decode_kv_release = False
    manager.is_mla_backend = False
    manager.kv_args = SimpleNamespace(engine_rank=0)
    manager.server_args = SimpleNamespace(enable_pd_role_switch=False)
    manager.attn_tp_rank = manager.attn_dp_rank = manager.pp_rank = manager.attn_cp_rank = 0
    manager.pp_size = manager.attn_cp_size = 1
    manager.bootstrap_port = 1
    manager.session_lock = threading.Lock()
    manager.failed_sessions = set()
    manager.failed_session_probes = {}
    manager.session_failures = defaultdict(int)
    manager.state_layout_rejections = {}
    manager._stopped = False
    manager._worker_threads = []
    manager._staging_outstanding = Counter()
    manager._deferred_ack_targets = {}
    manager._deferred_ack_poisoned_rooms = set()
    return manager


def bootstraps_after(kind: type[Any], start: str, bad: Sequence[bytes]) -> Probe:
    """Can decode still say where a room goes when this message came first?"""
    manager, sockets = manager_of(kind), Sockets()
    manager.server_socket = sockets.server
    getattr(manager, start)()
    if bad:
        sockets.client.send_multipart(bad)
    where = [b"7", b"127.0.0.1", b"1", b"peer", b"\0\0\0\0", b"0"]
    rest = [b"1", b"", b"0", b"0"] if kind.__name__.startswith("Nixl") else [b"", b"1", b"0"]
    sockets.client.send_multipart(([GUARD] if kind.__name__.startswith("Nixl") else []) + where + rest)
    return Probe(manager, WAITING_FOR_INPUT)


class ClearedBetweenLooks(dict[int, int]):
    """Statuses of which one is cleared, as by the scheduler, right after a worker has seen that it is there."""

    def __contains__(self, room: object) -> bool:
        there = super().__contains__(room)
        if room == 8:
            self.pop(8, None)
        return there


def works_after(kind: type[Any], *, known: bool) -> Probe:
    """Does a Mooncake worker still work after a chunk whose peer it does not know, or whose room was just cleared?

    It has a second chunk to send then, which fails for a reason that the worker itself knows.
    """
    manager = manager_of(kind)
    manager.request_status = ClearedBetweenLooks({7: TRANSFERRING, 8: TRANSFERRING})
    manager.transfer_infos = {7: {"dead": peer_of(7, "dead")}, 8: {"peer": peer_of(8, "peer")}}
    manager.failed_sessions.add("dead")
    if not known:
        manager.request_status = {7: TRANSFERRING, 8: TRANSFERRING}
    queue = FastQueue()
    threading.Thread(target=manager.transfer_worker, args=(queue, ThreadPoolExecutor(1)), daemon=True).start()
    queue.put(chunk_of(8))
    queue.put(chunk_of(7))
    return Probe(manager, FAILED)


def chunk_of(room: int) -> Any:
    """The last chunk of a room."""
    return TransferKVChunk(
        room=room,
        prefill_kv_indices=np.zeros(1, dtype=np.int32),
        index_slice=slice(0, 1),
        is_last_chunk=True,
        prefill_aux_index=0,
        state_indices=None,
    )


def peer_of(room: int, session: str) -> Any:
    """What decode has said of a room: its first page and metadata buffer."""
    where = [part.encode() for part in (str(room), "127.0.0.1", "1", session)]
    return TransferInfo.from_zmq([*where, b"\0\0\0\0", b"0", b"", b"1", b"0"])


def decode_hears_after(kind: type[Any], bad: Sequence[bytes]) -> Probe:
    """Does Mooncake on decode still hear that prefill failed a room when this message came first?"""
    manager, sockets = manager_of(kind), Sockets()
    manager.server_socket = sockets.server
    manager._start_heartbeat_checker_thread = lambda: threading.Thread()
    manager.start_decode_thread()
    if bad:
        sockets.client.send_multipart(bad)
    sockets.client.send_multipart([b"7", b"0", b"0"])
    return Probe(manager, FAILED)


def probes() -> dict[str, dict[str, Probe]]:
    """By thread: after what it should still do its work."""
    unknown = works_after(MooncakeKVManager, known=False)
    return {
        "NIXL prefill": {
            name: bootstraps_after(NixlKVManager, "_start_bootstrap_thread", bad) for name, bad in MESSAGES.items()
        },
        "Mooncake prefill": {
            name: bootstraps_after(MooncakeKVManager, "start_prefill_thread", bad) for name, bad in MESSAGES.items()
        },
        "Mooncake decode": {
            "nothing": decode_hears_after(MooncakeKVManager, []),
            "auxiliary data cut short": decode_hears_after(MooncakeKVManager, [MooncakeKVManager.AUX_DATA_HEADER]),
        },
        "Mooncake worker": {
            "a peer that is not known": unknown,
            "the room of that peer": Probe(unknown.manager, FAILED, room=8),
            "a room that is cleared meanwhile": works_after(MooncakeKVManager, known=True),
        },
    }


def outcomes(asked: Mapping[str, Mapping[str, Probe]]) -> dict[str, dict[str, bool]]:
    """Which of them pass, within the time that they all have together."""
    with contextlib.suppress(DeadlineExceeded):
        wait_until(
            lambda: all(probe.passed for group in asked.values() for probe in group.values()),
            deadline_s=WITHIN_S,
            what="all threads to have done their work",
        )
    return {thread: {name: probe.passed for name, probe in group.items()} for thread, group in asked.items()}


def apply_patches(*names: str) -> None:
    """As the plugin does, these alone."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    registry.apply({}, [patch for patch in registry.discover() if patch.name in names])
    HookRegistry.apply_hooks()


def main(arm: str) -> None:
    """Say what was found."""
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _: None
    if arm == "patched":
        apply_patches(*PATCHES)
    json.dump({"sglang": version("sglang"), **outcomes(probes())}, sys.stdout, indent=1)
    sys.stdout.flush()
    os._exit(0)  # NIXL's threads never end, and are no daemons


if __name__ == "__main__":
    main(sys.argv[1])
