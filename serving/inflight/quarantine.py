"""Decode's half of a promise: pages that a transfer may still write into are handed to nobody else.

When a request fails on decode, SGLang asks prefill to acknowledge that nothing is being written for it any more, and
frees the pages after 30 s also without an answer. A transfer that stalls for longer then lands in the pages of another
request, whose answer is a plain 200. Here the time alone frees nothing: it takes the acknowledgement of every rank, or
the death of the prefill that could still write, and then the 30 s for what is on the way.
"""

import logging
import time
from collections.abc import Callable

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0

REMEMBERED_S = 600.0
"""For how long a room of a dead prefill is known as such: it is held within a pass, and for 30 s."""


class Quarantine:
    """What decode keeps back, and whether the prefill behind each can still write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lost: dict[str, float] = {}
        self._lost_rooms: dict[int, float] = {}
        self._said: set[int] = set()

    def prefill_lost(self, address: str, rooms: list[int]) -> None:
        """The prefill at this address is dead; these rooms were open with it."""
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

    def _is_lost(self, request: Untyped, room: int, start_s: float) -> bool:
        address = request.kv_receiver.bootstrap_addr
        return room in self._lost_rooms or self._lost.get(address, float("-inf")) >= start_s


here = Quarantine()
"""That of the decode scheduler in this process, which has one at most."""


def before_resolving(queue: Untyped) -> None:
    """Before decode frees what was acknowledged or has waited long enough."""
    if queue._deferred_releases:
        queue._deferred_releases = here.postpone(queue._deferred_releases, time.monotonic())


def before_node_failure(manager: Untyped, failed_bootstrap_addr: str) -> None:
    """Before decode drops a prefill that does not answer any more."""
    with manager.connection_lock:
        rooms = list(manager.addr_to_rooms_tracker.get(failed_bootstrap_addr, ()))
    here.prefill_lost(failed_bootstrap_addr, rooms)
