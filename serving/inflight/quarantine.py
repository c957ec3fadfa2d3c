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

ASK_AGAIN_S = 1.0

SHOWN_EVERY_S = 0.25

LOST_S = 30.0
"""How long the pages of a dead prefill's request are kept, for what is on the way: SGLang's own default."""

REMEMBERED_S = 600.0
"""For how long a room of a dead prefill is known as such: it is held within a pass, and for 30 s."""


class Quarantine:
    """What decode keeps back, and whether the prefill behind each can still write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost: dict[str, float] = {}
        self._lost_rooms: dict[int, float] = {}
        self._said: set[int] = set()
        self.agreed: set[str] = set()
        """The requests of a pipeline whose transfers are over on all stages."""
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
            if now_s >= deadline and not self._is_lost(request, room, start):
                deadline = now_s + ASK_AGAIN_S
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
        return [
            request.kv_receiver.kv_mgr.is_abort_release_safe(request.req.bootstrap_room, acknowledgements)
            or (now_s >= start + LOST_S and self._is_lost(request, request.req.bootstrap_room, start))
            for request, start, _, _, acknowledgements in held
        ]

    def _is_lost(self, request: Untyped, room: int, start_s: float) -> bool:
        address = request.kv_receiver.bootstrap_addr
        return room in self._lost_rooms or self._lost.get(address, float("-inf")) >= start_s


here = Quarantine()
"""That of the decode scheduler in this process, which has one at most."""


def resolve(original: Untyped, queue: Untyped) -> None:
    """Around decode's release of what was acknowledged or has waited long enough."""
    _show(queue)
    if not queue._deferred_releases:
        return
    if pipeline.is_pipeline(queue.scheduler):
        _resolve_agreed(original, queue)
        return
    queue._deferred_releases = here.postpone(queue._deferred_releases, time.monotonic())
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
    agreed = [entry for entry in held if entry[0].req.rid in here.agreed]
    if not agreed:
        return
    # Its deadline is over by agreement, which makes the engine release it whatever this rank knows.
    queue._deferred_releases = [(entry[0], entry[1], entry[1], *entry[3:]) for entry in agreed]
    original(queue)
    here.agreed -= {entry[0].req.rid for entry in agreed}
    queue._deferred_releases = [*queue._deferred_releases, *(entry for entry in held if entry not in agreed)]


def drained_ids(queue: Untyped) -> list[str]:
    """The requests that this stage of a decode pipeline keeps pages for and could free."""
    from sglang.srt.disaggregation.utils import all_reduce_flags

    held = queue._deferred_releases
    if not held:
        return []
    import torch.distributed as dist

    flags = [int(flag) for flag in here.drained(held, time.monotonic())]
    agreed = all_reduce_flags(flags=flags, group=queue.gloo_group, op=dist.ReduceOp.MIN)
    return [entry[0].req.rid for entry, is_drained in zip(held, agreed, strict=True) if is_drained]
