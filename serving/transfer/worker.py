"""Mooncake's transfer workers: a chunk that one of them cannot send fails its own request, and nobody else's.

Each worker serves a queue for as long as prefill runs, and all requests of a decode rank go to the same queue. SGLang
lets an exception end the thread; it says that prefill is dead, and prefill goes on taking requests.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait

from serving.transfer.statuses import FAILED
from serving.transfer.taken import Taken
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

SETTLE_WITHIN_S = 5.0
"""How long writes that are under way may take to end, as in SGLang's NIXL worker."""


class Writes:
    """The writes that a worker has handed to its executor and that have not ended."""

    def __init__(self, executor: Executor) -> None:
        self._submit = executor.submit
        self._pending: set[Future[Untyped]] = set()
        executor.submit = self._noted  # type: ignore[method-assign]  # one executor, not its class

    def _noted(self, *args: Untyped, **named: Untyped) -> Future[Untyped]:
        write = self._submit(*args, **named)
        self._pending.add(write)
        write.add_done_callback(self._pending.discard)
        return write

    def settle(self) -> bool:
        """Call off what has not begun and wait for the rest; False if something is still being written."""
        pending = list(self._pending)
        for write in pending:
            write.cancel()
        return not wait(pending, SETTLE_WITHIN_S).not_done


def work(
    original: Callable[..., None],
    manager: Untyped,
    queue: Untyped,
    executor: Executor,
    *rest: Untyped,
    **named: Untyped,
) -> None:
    """Around MooncakeKVManager.transfer_worker: it is entered again after a chunk that it could not deal with."""
    taken = Taken(queue.get)
    queue.get = taken.take
    writes = Writes(executor)
    seen = 0
    while True:
        try:
            return original(manager, queue, executor, *rest, **named)
        except Exception as error:
            # Without a new chunk since the last time it is not the chunk that is at fault.
            if taken.last is None or taken.count == seen:
                raise
            seen = taken.count
            settled = writes.settle()
            if settled:
                _uncount(manager, taken.last)
            _fail(manager, taken.last.room, error, settled=settled)


def _uncount(manager: Untyped, chunk: Untyped) -> None:
    """Take back that a chunk is being written, and that nobody can know: prefill's pages and decode's wait for it."""
    if getattr(chunk, "staging_counted", False):
        chunk.staging_counted = False
        manager._staging_outstanding[chunk.room] = max(0, manager._staging_outstanding.get(chunk.room, 0) - 1)
    getattr(manager, "_deferred_ack_poisoned_rooms", set()).discard(chunk.room)


def _fail(manager: Untyped, room: int, error: Exception, *, settled: bool) -> None:
    """Fail a room on prefill, and tell its decode if nothing can be written to decode's pages any more."""
    cause = error.__context__ or error
    reason = f"the transfer worker could not send a chunk: {type(cause).__name__}: {cause}"
    told = "its decode is told" if settled else f"a write goes on after {SETTLE_WITHIN_S:.0f} s, so decode is not told"
    logger.error("dsv4: room %s failed: %s; %s; the worker goes on", room, reason, told, exc_info=error)
    if room not in manager.request_status:
        return
    if hasattr(manager, "conclude_failure"):
        nobody: list[tuple[str, int]] = []
        manager.conclude_failure(bootstrap_room=room, failure_reason=reason, targets=None if settled else nobody)
        return
    peers = [peer for peer in list(manager.transfer_infos.get(room, {}).values()) if settled and not peer.is_dummy]
    manager.record_failure(room, reason)
    manager.update_status(room, FAILED)
    for peer in peers:
        try:
            # Which rank failed does not count, as it does for a success.
            manager.sync_status_to_decode_endpoint(peer.endpoint, peer.dst_port, room, FAILED, 0)
        except Exception as unreachable:  # noqa: BLE001 - whatever it is, the worker has others to serve
            logger.warning("dsv4: %s:%s was not told of room %s: %s", peer.endpoint, peer.dst_port, room, unreachable)
