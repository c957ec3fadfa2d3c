"""The task of an engine's HTTP process that ends the requests of a scheduler that does not move.

A scheduler shows that it moves by the load that it publishes in shared memory, every 50 ms while it has requests and
no batch, after every batch, and at least every second when idle. The pipeline-parallel loops publish nothing while
requests wait and there is no batch, nor does any loop while generation is paused; `show_movement` fills that in.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from serving import limits
from serving.stall import scheduler_pass
from serving.stall.clock import StallClock, every_s
from serving.stall.other_half import give_up
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

LIMIT: Final = "SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT"
LIMIT_DEFAULT_S: Final = 120.0

SHOWN_EVERY_S: Final = 0.5
"""How often a scheduler shows that it moves, at least, while its loop turns."""

_READ: Final = 256
"""Of a published load; the time of its publication is in its first bytes."""

ENDED: Final = "scheduler stall"
"""The words that each message of ours begins with."""


def prepare(_result: Untyped, manager: Untyped) -> None:
    """After the HTTP process has made its tokenizer manager: read the limit.

    Raises:
        SystemExit: SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT is no number of seconds.
    """
    manager.dsv4_stall_limit_s = limits.seconds(LIMIT, LIMIT_DEFAULT_S)
    manager.dsv4_stall_watch = None


def begin(_result: Untyped, manager: Untyped) -> None:
    """After the manager has its event loop, before its first request: watch from now on, unless switched off."""
    if manager.dsv4_stall_watch is not None or not manager.dsv4_stall_limit_s:
        return
    manager.dsv4_stall_watch = watch = Watch(manager, manager.dsv4_stall_limit_s)
    manager.asyncio_tasks.add(manager.event_loop.create_task(watch.run()))


def show_movement(_result: Untyped, scheduler: Untyped, *_: Untyped, **__: Untyped) -> None:
    """After a scheduler has received its requests, on every pass of each of its loops: publish that it moves."""
    now_s = scheduler_pass.last_s = time.monotonic()
    if now_s >= getattr(scheduler, "dsv4_shows_movement_s", 0.0):
        scheduler.dsv4_shows_movement_s = now_s + SHOWN_EVERY_S
        scheduler.publish_load_snapshot(force=True)


class Watch:
    """Over the schedulers of one engine. All of it runs in the event loop of its HTTP process.

    With data parallelism nobody here knows which rank has a request, so one fires only when no rank moves.
    """

    def __init__(self, manager: Untyped, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._limit_s = limit_s
        self._clock = clock
        self._every_s = every_s(limit_s)
        self._stall = StallClock(self._every_s)
        self._loads: Loads | None = None
        self._telling: set[asyncio.Future[None]] = set()
        mode = manager.disaggregation_mode.value
        self._role = "unified" if mode == "null" else mode
        self._unseen_looks = 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                self.look()
            except Exception:
                # SGLang ends the whole engine when a task of its manager fails; a watch that fails is worth less.
                logger.exception("dsv4 scheduler stall: a look failed; the next is in %g s", self._every_s)

    def look(self) -> None:
        """One look; ends what is overdue."""
        from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

        pending = [
            rid
            for rid, state in self._manager.rid_to_state.items()
            if state.dispatched and not rid.startswith(HEALTH_CHECK_RID_PREFIX)
        ]
        self._stall.look(self._clock(), self._shown(), pending)
        if pending and not self._stall.has_moved:
            self._say_unseen()
        server = self._manager.bootstrap_server
        if server is not None:
            server.dsv4_scheduler_stalled = self._stall.still_s >= self._limit_s
        rooms: dict[tuple[str, int], list[int]] = {}
        for rid, waited_s in self._stall.overdue(self._limit_s).items():
            request = self._manager.rid_to_state[rid].obj
            self._end(rid, waited_s)
            if self._role == "decode" and isinstance(request.bootstrap_port, int):
                rooms.setdefault((request.bootstrap_host, request.bootstrap_port), []).append(request.bootstrap_room)
        for (host, port), given_up in rooms.items():
            telling = asyncio.get_running_loop().run_in_executor(None, give_up, host, port, given_up)
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _shown(self) -> object:
        if self._loads is None:
            self._loads = Loads.of(self._manager.load_snapshot_reader)
        return self._loads.shown() if self._loads is not None else None

    def _say_unseen(self) -> None:
        self._unseen_looks += 1
        if self._unseen_looks * self._every_s >= self._limit_s:
            self._unseen_looks = 0
            logger.warning(
                "dsv4 scheduler stall: requests are waiting, and no load was seen to be published in %g s, so a "
                "scheduler that stands still cannot be told from one that moves; %s is not kept",
                self._limit_s,
                LIMIT,
            )

    def _end(self, rid: str, waited_s: float) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        message = (
            f"{ENDED}: the scheduler of this {self._role} worker has not moved for {waited_s:.1f} s while it had this "
            f"request, and the limit is {self._limit_s:g} s ({LIMIT}); the request was ended. Look at the scheduler "
            "process: if it is stopped or hangs, restart the worker; then send the request again"
        )
        logger.warning(
            "dsv4 scheduler stall rid=%s role=%s waited_s=%.3f limit_s=%g", rid, self._role, waited_s, self._limit_s
        )
        # First the abort, which a scheduler that goes on finds before anything newer; then our own answer, after which
        # the manager no longer knows the request.
        self._manager.abort_request(rid)
        reason = {"type": "abort", "message": message, "status_code": HTTPStatus.SERVICE_UNAVAILABLE, "err_type": None}
        self._manager._handle_abort_req(AbortReq(rid=rid, finished_reason=reason))


class Loads:
    """What the schedulers of an engine publish, read without the lock that a stopped scheduler may hold for ever."""

    def __init__(self, path: str, offsets: tuple[int, ...]) -> None:
        self._offsets = offsets
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @classmethod
    def of(cls, reader: Untyped) -> "Loads | None":
        """Those that this reader of SGLang reads; None while there are none, or when they come over ZeroMQ."""
        from sglang.srt.managers.load_snapshot import ShmLoadSnapshotReader, slot_offset

        if not isinstance(reader, ShmLoadSnapshotReader):
            return None
        try:
            return cls(reader.path, tuple(slot_offset(rank) for rank in range(reader.dp_size)))
        except FileNotFoundError:
            return None

    def shown(self) -> object:
        """What is published now; differs from before when any scheduler has published since."""
        return tuple(os.pread(self._file, _READ, offset) for offset in self._offsets)
