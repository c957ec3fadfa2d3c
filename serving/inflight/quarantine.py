"""Decode's half of a promise: pages that a transfer may still write into are handed to nobody else.

When a request fails on decode, SGLang asks prefill to acknowledge that nothing is being written for it any more, and
frees the pages after 30 s also without an answer. A transfer that stalls for longer then lands in the pages of another
request, whose answer is a plain 200. Here the time alone frees nothing: it takes the acknowledgement of every rank, or
the death of the prefill that could still write, and then the 30 s for what is on the way.
"""

import logging
import time
from collections.abc import Callable

from serving import telemetry
from serving.inflight import pipeline
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
"""How often prefill is asked whether its transfer is over, once the engine's own patience is at an end.

A question, or its answer, is lost with the connection that it was on.
"""

SHOWN_EVERY_S = 0.25

LOST_S = 30.0
"""How long after the end of its prefill a request's pages are kept, for what is on the way: SGLang's own default."""

REMEMBERED_S = 600.0
"""For how long a room of a dead prefill is known as such: it is held within a pass, and for 30 s."""


def _ask_again(receiver: Untyped) -> None:
    """Ask prefill as the engine did, under the same number: what it has answered already counts once."""
    import zmq
    from sglang.srt.disaggregation.common.conn import AbortNotification

    manager = receiver.kv_mgr
    question = AbortNotification(
        room=receiver.bootstrap_room,
        decode_ip=manager.local_ip,
        decode_port=manager.rank_port,
        generation=receiver._abort_generation,
    ).to_zmq()
    for rank in receiver.bootstrap_infos:
        try:
            sock, lock = receiver._connect_to_bootstrap_server(rank)
            with lock:
                sock.send_multipart(question, flags=zmq.NOBLOCK)
        except (zmq.ZMQError, OSError) as error:
            # The scheduler must not wait for a prefill that does not listen; it is asked again.
            logger.debug("dsv4 quarantine room=%s: cannot ask %s again: %s", receiver.bootstrap_room, rank, error)


class Quarantine:
    """What decode keeps back, and whether the prefill behind each can still write."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, ask_again: Callable[[Untyped], object] = _ask_again
    ) -> None:
        self._clock = clock
        self._ask_again = ask_again
        self._lost: dict[str, float] = {}
        self._lost_rooms: dict[int, float] = {}
        self._said: set[int] = set()
        self.agreed: set[int] = set()
        """The rooms of a pipeline whose transfers are over on all stages."""
        self.shown: int | None = None
        """How many were kept when that was last reported."""
        self.next_show_s = 0.0

    def prefill_lost(self, address: str, rooms: list[int]) -> None:
        """The prefill at this address has ended, which a bad heartbeat does not show; these rooms were its."""
        now = self._clock()
        self._lost[address] = now
        self._lost_rooms = {room: lost for room, lost in self._lost_rooms.items() if now - lost < REMEMBERED_S}
        self._lost_rooms |= dict.fromkeys(rooms, now)

    def postpone(self, held: list[Untyped], now_s: float) -> list[Untyped]:
        """The engine's list of held releases, with the deadline moved on of each whose prefill still lives.

        An entry is (request, start, deadline, metadata index, required acknowledgements), times in monotonic seconds.
        """
        kept: list[Untyped] = []
        for entry in held:
            request, start, deadline, index, acknowledgements = entry
            room = request.req.bootstrap_room
            lost_s = self._lost_since(request, room, start)
            if lost_s is not None:
                deadline = lost_s + LOST_S
            elif now_s >= deadline:
                deadline = now_s + ASK_AGAIN_S
                self._ask_again(request.kv_receiver)
                if room not in self._said:
                    self._said.add(room)
                    logger.warning(
                        "dsv4 quarantine rid=%s room=%s held_s=%.1f: prefill has not said that its transfer is over, "
                        "and lives; the pages stay out of use until it does",
                        request.req.rid,
                        room,
                        now_s - start,
                    )
            kept.append((request, start, deadline, index, acknowledgements))
        self._said &= {entry[0].req.bootstrap_room for entry in kept}
        return kept

    def drained(self, held: list[Untyped], now_s: float) -> list[bool]:
        """Which of the engine's held releases could be done as far as this rank knows."""
        found = []
        for request, start, _, _, acknowledgements in held:
            room = request.req.bootstrap_room
            lost_s = self._lost_since(request, room, start)
            is_safe = request.kv_receiver.kv_mgr.is_abort_release_safe(room, acknowledgements)
            found.append(is_safe or (lost_s is not None and now_s >= lost_s + LOST_S))
        return found

    def _lost_since(self, request: Untyped, room: int, start_s: float) -> float | None:
        """When the prefill behind a held release ended; None while it lives."""
        if room in self._lost_rooms:
            return self._lost_rooms[room]
        lost_s = self._lost.get(request.kv_receiver.bootstrap_addr)
        return lost_s if lost_s is not None and lost_s >= start_s else None


here = Quarantine()
"""That of the decode scheduler in this process, which has one at most."""


def resolve(original: Untyped, queue: Untyped) -> None:
    """Around decode's release of what was acknowledged or has waited long enough."""
    _show(queue)
    if not queue._deferred_releases:
        return
    queue._deferred_releases = here.postpone(queue._deferred_releases, time.monotonic())
    if pipeline.is_pipeline(queue.scheduler):
        _resolve_agreed(original, queue)
    else:
        original(queue)


def _show(queue: Untyped) -> None:
    """Report what is kept, when that changed and four times a second while anything is."""
    now = time.monotonic()
    held = queue._deferred_releases
    if len(held) == here.shown and (not held or now < here.next_show_s):
        return
    here.shown, here.next_show_s = len(held), now + SHOWN_EVERY_S
    telemetry.holds_for(queue.scheduler).show(
        telemetry.Holds(
            held_requests=len(held),
            held_tokens=sum(len(entry[0].req.origin_input_ids) for entry in held),
            oldest_hold_s=max((now - entry[1] for entry in held), default=0.0),
        )
    )


def _resolve_agreed(original: Untyped, queue: Untyped) -> None:
    """In a pipeline: what all stages agreed on, and nothing else."""
    held = queue._deferred_releases
    agreed = [entry for entry in held if entry[0].req.bootstrap_room in here.agreed]
    if not agreed:
        return
    # Its deadline is over by agreement, which makes the engine release it whatever this rank knows.
    queue._deferred_releases = [(entry[0], entry[1], entry[1], *entry[3:]) for entry in agreed]
    original(queue)
    here.agreed -= {entry[0].req.bootstrap_room for entry in agreed}
    queue._deferred_releases = [*queue._deferred_releases, *(entry for entry in held if entry not in agreed)]


def drained_rooms(queue: Untyped) -> list[int]:
    """The rooms that this stage of a decode pipeline keeps pages for and could free."""
    from sglang.srt.disaggregation.utils import all_reduce_flags

    held = queue._deferred_releases
    if not held:
        return []
    import torch.distributed as dist

    flags = [int(flag) for flag in here.drained(held, time.monotonic())]
    agreed = all_reduce_flags(flags=flags, group=queue.gloo_group, op=dist.ReduceOp.MIN)
    return [entry[0].req.bootstrap_room for entry, is_drained in zip(held, agreed, strict=True) if is_drained]
