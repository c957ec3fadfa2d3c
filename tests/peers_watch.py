"""A watch over decode workers, on SGLang's own managers, with real sockets for the workers.

    python -m tests.peers_watch

The managers are SGLang's; only the maps that a watch reads are made here. It says as JSON, for each kind of map of
statuses, what became of the rooms of each scene.
"""

import json
import math
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from serving.inflight import told
from serving.peers.watch import UNCLAIMED_GRACES, Watch, gave_up
from serving.stall import scheduler_pass

GRACE_S = 10.0
LOOKS = 4
"""More than a worker that is gone takes to be found so."""
LONG_S = 1e6
HEARD_WITHIN_MS = 10_000
NAMES = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
"""Of SGLang's KVPoll, by value."""


class Scene:
    """A prefill rank with a clock of its own, and the decode workers that it knows."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.now_s = 0.0
        self.watch = manager.dsv4_peers = Watch(manager, GRACE_S, lambda: self.now_s)
        self.listeners: dict[str, socket.socket] = {}

    def starts(self, name: str, port: int = 0) -> int:
        """A worker starts to listen."""
        self.listeners[name] = socket.create_server(("127.0.0.1", port))
        listening: tuple[str, int] = self.listeners[name].getsockname()
        return listening[1]

    def registers(self, name: str, port: int) -> None:
        """It makes itself known to prefill."""
        self.manager.decode_kv_args_table[name] = SimpleNamespace(endpoint="127.0.0.1", dst_port=port)

    def ends(self, name: str) -> None:
        """It dies."""
        self.listeners.pop(name).close()

    def room(self, number: int, *statuses: int, of: str = "", opened: bool = True) -> None:
        """A room goes through these statuses; the worker `of` has asked for it, and a request has opened it or not."""
        if opened:
            told.opened.add(number)
        for status in statuses:
            self.manager.update_status(number, status)
        if of:
            known = self.manager.decode_kv_args_table[of]
            info = SimpleNamespace(endpoint=known.endpoint, dst_port=known.dst_port, is_dummy=False)
            self.manager.transfer_infos[number] = {of: info}

    def looks(self, after_s: float = 0.0) -> None:
        """Some looks, so much later."""
        self.now_s += after_s
        for _ in range(LOOKS):
            self.watch.look()

    def found(self, *rooms: int) -> list[str]:
        """Where these rooms stand, with the first word of the reason if they failed."""
        reasons = self.manager.failure_records
        return [
            " ".join((NAMES[self.manager.request_status.get(room)], *reasons.get(room, "").split()[:1]))
            for room in rooms
        ]

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()


def a_worker_dies(scene: Scene, poll: Any) -> Any:
    scene.registers("a", scene.starts("a"))
    scene.room(1, poll.Bootstrapping, poll.Transferring, of="a")
    scene.room(2, poll.Bootstrapping)
    scene.room(3, poll.Bootstrapping, poll.Success, of="a")
    scene.room(4, poll.Bootstrapping, of="a")
    scene.looks()
    before = scene.found(1, 2, 3, 4)
    scene.ends("a")
    scene.looks()
    at_once = scene.found(1, 2, 3, 4)
    scene.looks(after_s=GRACE_S)
    after_the_grace = scene.found(2)
    # A message to it would wait for it, and hold up all that this thread has to say to others.
    messages = len(scene.manager._socket_cache)
    return {"before": before, "at once": at_once, "after the grace": after_the_grace, "told": messages}


def nobody_ever_registered(scene: Scene, poll: Any) -> Any:
    scene.room(1, poll.Bootstrapping)
    scene.looks()
    scene.looks(after_s=LONG_S)
    return scene.found(1)


def another_registers_after_the_last_one_died(scene: Scene, poll: Any) -> Any:
    scene.registers("a", scene.starts("a"))
    scene.looks()
    scene.ends("a")
    scene.room(1, poll.Bootstrapping)
    scene.looks()
    scene.registers("b", scene.starts("b"))
    scene.looks(after_s=LONG_S)
    return scene.found(1)


def a_worker_that_was_gone_is_named_and_there(scene: Scene, poll: Any) -> Any:
    port = scene.starts("a")
    scene.registers("a", port)
    scene.looks()
    scene.ends("a")
    scene.looks()
    scene.starts("a", port)
    scene.room(1, poll.Bootstrapping, of="a")
    scene.looks()
    return scene.found(1)


def nobody_opens_a_room(scene: Scene, poll: Any) -> Any:
    """Decode asks for one whose request died with the prefill before this one, and for one that comes late.

    And for one that it gives up itself, before prefill's half has come so far as to open it.
    """
    scene.registers("a", scene.starts("a"))
    scene.room(21, poll.WaitingForInput, of="a", opened=False)
    scene.room(22, poll.WaitingForInput, of="a", opened=False)
    scene.room(23, poll.WaitingForInput, poll.Failed, of="a", opened=False)
    scene.room(24, poll.Bootstrapping, poll.Failed, of="a")
    scene.looks()
    scene.looks(after_s=UNCLAIMED_GRACES * GRACE_S - 0.1)
    before = scene.found(21, 22, 23, 24)
    scene.room(22, opened=True)
    scene.looks(after_s=0.2)
    tables = (scene.manager.request_status, scene.manager.transfer_infos, scene.manager.failure_records)
    left = [room in table for room in (21, 23) for table in tables]
    for sock in (*scene.manager._socket_cache.values(), *scene.manager._monitor_cache.values()):
        sock.close(linger=0)
    scene.manager._socket_cache.clear()
    scene.manager._monitor_cache.clear()
    return {
        "before": before,
        "left of it": left,
        "the late one": scene.found(22),
        "one that prefill ends": scene.found(24),
        "its half, later still": _a_late_half(scene, poll),
    }


def _a_late_half(scene: Scene, poll: Any) -> list[str]:
    """The request of a room that was closed for want of it comes after all."""
    scene.room(21, poll.Bootstrapping)
    scene.looks()
    told.opened.discard(21)
    return scene.found(21)


def prefill_is_in_a_long_pass(scene: Scene, poll: Any) -> Any:
    """Nobody can open a room meanwhile; after it the time counts again."""
    scene.registers("a", scene.starts("a"))
    scene.room(31, poll.WaitingForInput, of="a", opened=False)
    scene.looks()
    scheduler_pass.last_s = time.monotonic() - scheduler_pass.TURNS_EVERY_S - 1.0
    try:
        for _ in range(5):
            scene.looks(after_s=UNCLAIMED_GRACES * GRACE_S)
        during = scene.found(31)
    finally:
        scheduler_pass.last_s = -math.inf
    scene.looks(after_s=UNCLAIMED_GRACES * GRACE_S + 0.1)
    return {"during": during, "closed after it": 31 not in scene.manager.request_status}


def prefill_gives_up_a_room(scene: Scene, poll: Any) -> Any:
    """What each of two workers hears of it: room and status."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as one, context.socket(zmq.PULL) as other:
        for name, worker in (("a", one), ("b", other)):
            worker.setsockopt(zmq.RCVTIMEO, HEARD_WITHIN_MS)
            scene.registers(name, worker.bind_to_random_port("tcp://127.0.0.1"))
        scene.looks()
        scene.room(9, poll.Bootstrapping)
        sender = SimpleNamespace(kv_mgr=scene.manager, bootstrap_room=9)
        gave_up(None, sender)
        scene.looks()
        scene.manager.record_failure(9, "too long")
        gave_up(poll.Failed, sender)
        scene.looks()
        heard = [scene.manager.parse_kv_status_message(worker.recv_multipart()) for worker in (one, other)]
        for sock in (*scene.manager._socket_cache.values(), *scene.manager._monitor_cache.values()):
            sock.close(linger=0)
    return [[room, NAMES[status]] for room, status, _, _ in heard]


SCENES: tuple[Callable[[Scene, Any], Any], ...] = (
    a_worker_dies,
    nobody_ever_registered,
    another_registers_after_the_last_one_died,
    a_worker_that_was_gone_is_named_and_there,
    nobody_opens_a_room,
    prefill_is_in_a_long_pass,
    prefill_gives_up_a_room,
)


def main() -> None:
    """Say what was found."""
    warnings.simplefilter("ignore")  # SGLang's, of kernels that this machine has no use for
    import zmq
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.common import conn

    def store_of_first_stage() -> Any:
        store = object.__new__(conn.PPConsensusStore)
        store._pp_rank = 0
        store._local_map = {}
        store._cache_lock = threading.Lock()
        return store

    def manager(statuses: Any) -> Any:
        made = object.__new__(conn.CommonKVManager)
        made.request_status = statuses
        made.attn_tp_rank = made.pp_rank = made.attn_cp_rank = 0
        made.pp_size = made.attn_cp_size = 1
        made._zmq_ctx, made._socket_lock = zmq.Context(), threading.Lock()
        made._socket_cache, made._monitor_cache, made._socket_send_locks = {}, {}, {}
        made.transfer_infos, made.decode_kv_args_table, made.failure_records = {}, {}, {}
        made.failure_lock, made.req_to_decode_prefix_len = threading.Lock(), {}
        made._deferred_ack_targets, made._deferred_ack_poisoned_rooms, made._staging_outstanding = {}, set(), {}
        return made

    said: dict[str, dict[str, Any]] = {}
    for kind, make_map in (("dict", dict), ("store", store_of_first_stage)):
        said[kind] = {}
        for scene_of in SCENES:
            scene = Scene(manager(make_map()))
            said[kind][scene_of.__name__] = scene_of(scene, KVPoll)
            scene.close()
    json.dump(said, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # a socket that was left open would wait for its other end


if __name__ == "__main__":
    main()
