"""A chunk that a lost connection stopped is sent once more, over the new one, before its request is failed for it.

UCX notices that a connection was lost when it is next used. The request that uses it was in no way part of what went
wrong before, and its pages on both sides are still its own: the same bytes can be written to the same place again.
"""

import logging
import sys
import threading
from collections.abc import Callable

from serving.transfer import reconnect
from serving.transfer.taken import Taken
from serving.untyped import Untyped

logger = logging.getLogger(__name__)


class Chunks(Taken):
    """The queue of one transfer worker, which can give a chunk back as the next to be taken, once."""

    def __init__(self, take: Callable[..., Untyped]) -> None:
        super().__init__(take)
        self._given_back = False
        self.is_second_try = False
        self.is_closed = False
        """Whether the connections of the chunk's room were closed because its writes did not settle."""

    def give_back(self) -> None:
        """The chunk that was taken last is taken again: before any later one, which may be the last of its room."""
        self._given_back = True

    def take(self, *args: Untyped, **named: Untyped) -> Untyped:
        """The chunk that was given back, or the next one, once there is one."""
        self.is_second_try, self._given_back, self.is_closed = self._given_back, False, False
        return self.last if self.is_second_try else super().take(*args, **named)


class _Here(threading.local):
    chunks: Chunks | None = None


_here = _Here()


def work(original: Callable[..., None], manager: Untyped, queue: Untyped, *rest: Untyped, **named: Untyped) -> None:
    """Around NixlKVManager.transfer_worker, which serves its queue for as long as prefill runs."""
    _here.chunks = Chunks(queue.get)
    queue.get = _here.chunks.take
    original(manager, queue, *rest, **named)


def await_handles(
    original: Callable[..., tuple[bool, bool]], manager: Untyped, handles: Untyped, *, failure_seen: bool
) -> tuple[bool, bool]:
    """Around SGLang's wait for the writes of a chunk: what does not settle, settles when its connections are closed.

    NIXL has no state of a write whose connection was lost under it, and SGLang takes that for a write that goes on.
    """
    chunks = _here.chunks
    if chunks is None:
        return original(manager, handles, failure_seen=failure_seen)
    if not chunks.is_closed:
        settled, failed = original(manager, handles, failure_seen=failure_seen)
        infos = manager.transfer_infos.get(chunks.last.room)
        if settled or infos is None or not reconnect.close(manager, chunks.last.room, infos, at_once=True):
            return settled, failed
        chunks.is_closed = True
    return True, True


def conclude_failure(
    original: Callable[..., Untyped], manager: Untyped, *, bootstrap_room: int, **named: Untyped
) -> Untyped:
    """Around SGLang's end of a room that failed; a transfer worker comes here when all its handles have settled.

    Other threads end rooms as well, and have no chunk in their hands.
    """
    chunks = _here.chunks
    if chunks is not None and _can_go_again(manager, bootstrap_room, chunks):
        logger.warning("dsv4 again room=%s: its connection was lost: %s", bootstrap_room, sys.exception())
        chunks.give_back()
        return None
    return original(manager, bootstrap_room=bootstrap_room, **named)


def _can_go_again(manager: Untyped, room: int, chunks: Chunks) -> bool:
    """Whether the connections of this room were at fault, and are closed now: nothing arrives on them any more.

    With staging the chunk has gone through buffers that are handed on, and is not what it was.
    """
    from sglang.srt.disaggregation.base import KVPoll

    infos = manager.transfer_infos.get(room)
    if (
        chunks.is_second_try
        or chunks.last.room != room
        or infos is None
        or manager.enable_staging
        or manager.check_status(room) != KVPoll.Transferring
        or not reconnect.is_about_the_connection(sys.exception())
    ):
        return False
    return reconnect.close(manager, room, infos, at_once=False)
