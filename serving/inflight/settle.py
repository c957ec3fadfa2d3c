"""Prefill's half of a promise: the pages of a request that ended badly stay owned until nothing reads them any more.

A transfer that was posted cannot be called back for certain. SGLang frees the pages of a failed or aborted request at
once, and the next request writes its own KV into them while the transfer worker may still be sending them. So the
release of such a request is put off until the worker has let go of its room; its client has its answer long before.

A chunk that still waits in a worker's queue cannot start any more, since the worker looks at the room's status after
counting the chunk. What is counted is therefore all that can be running, except a handle that NIXL could not settle
after a peer's failure: that one keeps writing into pages which decode keeps in quarantine for it
(`serving.inflight.quarantine`), and waiting for it here as well would leak without protecting anything.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.inflight import pipeline
from serving.untyped import Untyped

logger = logging.getLogger(__name__)


@dataclass
class Kept:
    """What is owed to a request that has ended: each release, as it was asked for, and since when."""

    since_s: float
    releases: list[Callable[[], object]] = field(default_factory=list)


class Settling:
    """The requests of one prefill scheduler that have ended and whose pages are kept.

    All ranks decide alike, since they must hand out the same pages: whether to keep, and when to release, is agreed
    among the tensor and context parallel ranks by a reduction. The stages of a pipeline keep whatever failed, since it
    fails on all of them (`serving.inflight.pipeline`), and release when each has said that it can.
    """

    def __init__(self, scheduler: Untyped, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._kept: dict[Untyped, Kept] = {}
        self._is_pipeline = pipeline.is_pipeline(scheduler)

    def __len__(self) -> int:
        return len(self._kept)

    def oldest_s(self) -> float:
        """For how long the oldest has been kept, in seconds."""
        return max((self._clock() - kept.since_s for kept in self._kept.values()), default=0.0)

    def keeps(self, request: Untyped, release: Callable[[], object]) -> bool:
        """Whether `release` of something of this request is put off; it is then done later, here."""
        if kept := self._kept.get(request):
            kept.releases.append(release)
            return True
        sender = getattr(request, "disagg_kv_sender", None)
        if not _ended_badly(request, sender):
            return False
        if not self._is_pipeline and not self._any_rank(is_running(sender)):
            forget_room(sender)
            return False
        self._kept[request] = Kept(self._clock(), [release])
        return True

    def resolve(self) -> None:
        """Release what has settled on all ranks. A pipeline agrees by `settled_rooms` and `release_agreed` instead."""
        if self._kept and not self._is_pipeline:
            for request, is_over in zip(list(self._kept), self._settled_on_all_ranks(), strict=True):
                if is_over:
                    self._release(request)

    def settled_rooms(self) -> list[int]:
        """The rooms whose transfer is over on this stage of a pipeline."""
        if not self._kept:
            return []
        settled = self._settled_on_all_ranks()
        return [request.bootstrap_room for request, is_over in zip(self._kept, settled, strict=True) if is_over]

    def release_agreed(self, rooms: set[int]) -> None:
        """Release the requests of these rooms: their transfers are over on all stages of the pipeline."""
        for request in [request for request in self._kept if request.bootstrap_room in rooms]:
            self._release(request)

    def _release(self, request: Untyped) -> None:
        kept = self._kept.pop(request)
        for release in kept.releases:
            release()
        forget_room(request.disagg_kv_sender)
        logger.info(
            "dsv4 settled rid=%s room=%s kept_s=%.3f", request.rid, request.bootstrap_room, self._clock() - kept.since_s
        )

    def _settled_on_all_ranks(self) -> list[bool]:
        return self._reduced([not is_running(request.disagg_kv_sender) for request in self._kept], "MIN")

    def _any_rank(self, flag: bool) -> bool:
        return self._reduced([flag], "MAX")[0]

    def _reduced(self, flags: list[bool], operation: str) -> list[bool]:
        import torch.distributed as dist
        from sglang.srt.disaggregation.utils import all_reduce_flags

        reduced: list[int] = [int(flag) for flag in flags]
        for group in (self._scheduler.attn_tp_cpu_group, self._scheduler.attn_cp_cpu_group):
            reduced = all_reduce_flags(reduced, group, getattr(dist.ReduceOp, operation))
        return [bool(flag) for flag in reduced]


def is_running(sender: Untyped) -> bool:
    """Whether a transfer worker of this rank may still be sending pages of this sender's room."""
    manager, room = sender.kv_mgr, sender.bootstrap_room
    return bool(manager._staging_outstanding.get(room, 0) > 0 and room not in manager._deferred_ack_poisoned_rooms)


def forget_room(sender: Untyped) -> None:
    """Drop what the manager keeps of a room that has ended: SGLang leaves it there for ever after some aborts."""
    manager, room = sender.kv_mgr, sender.bootstrap_room
    if room in manager.request_status:
        sender.clear()
    with manager.failure_lock:
        manager.failure_records.pop(room, None)
    if manager._staging_outstanding.get(room) == 0:
        manager._staging_outstanding.pop(room, None)


def _ended_badly(request: Untyped, sender: Untyped) -> bool:
    """Whether this is the release of a request that may have sent something and did not succeed.

    A request that waits for its bootstrap has sent nothing, and one that was retracted goes on with the same room. A
    health check's sender is a fake without a room.
    """
    from sglang.srt.disaggregation.base import KVPoll

    if sender is None or request.pending_bootstrap or sender.conclude_state != KVPoll.Failed:
        return False
    return hasattr(sender, "_transfer_metric")


here: Settling | None = None
"""That of the prefill scheduler in this process, which has one at most."""


def begin(_: object, scheduler: Untyped) -> None:
    """After the engine prepared its role (again, if it switched): keep pages where this is prefill."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    global here
    here = Settling(scheduler) if scheduler.disaggregation_mode == DisaggregationMode.PREFILL else None


def release_kv_cache(original: Untyped, req: Untyped, tree_cache: Untyped, *, checkpoint: bool) -> None:
    """Around the engine's release of a request's KV pages and row.

    The request itself has nothing any more, as after the release: the engine sees by that what it has ended already,
    and would end it again with the result of a chunk that was computed meanwhile.
    """
    pages, lock = req.kv, req.lock

    def release() -> None:
        req.kv, req.lock = pages, lock
        original(req, tree_cache, checkpoint=checkpoint)

    if here is not None and pages.holds_kv and here.keeps(req, release):
        req.kv, req.lock = type(pages)(), None
        return
    original(req, tree_cache, checkpoint=checkpoint)


def release_metadata_buffer(original: Untyped, req: Untyped, allocator: Untyped) -> None:
    """Around the engine's release of the buffer from which the first token is sent."""
    index = req.metadata_buffer_index
    if here is not None and index >= 0 and here.keeps(req, lambda: allocator.free(index)):
        req.metadata_buffer_index = -1
        return
    original(req, allocator)


def after_bootstrap_pass(_: object, *__: object) -> None:
    """On every pass of every loop of prefill, also when nothing else happens."""
    if here is not None:
        here.resolve()


def is_fully_idle(original: Untyped, scheduler: Untyped, *arguments: object, **named: object) -> bool:
    """An engine that keeps pages is not idle: it must not check its pools, sleep, flush or switch its role."""
    idle = bool(original(scheduler, *arguments, **named))
    return idle and (not here or bool(arguments[:1] == (True,) or named.get("for_health_check")))


def settled_rooms() -> list[int]:
    """The rooms that this stage of a prefill pipeline keeps pages for and needs them no more."""
    return here.settled_rooms() if here else []


def before_inflight_pass(_: object, rids_to_check: list[str] | None = None) -> None:
    """What all stages of a pipeline agreed on came back."""
    if here and rids_to_check:
        here.release_agreed(pipeline.settled_among(rids_to_check))
