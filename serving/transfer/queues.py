"""Each decode worker has a transfer worker of its own on prefill: one that stands still delays nobody else's KV.

SGLang spreads the decode workers over four queues by their ports. A transfer worker waits for its writes without a
limit, so whoever shares a queue with a decode that is frozen waits with it, until the watchdog ends requests that had
nothing to wait for.
"""

import logging
import threading

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

Decode = frozenset[tuple[str, int]]
"""Where the ranks listen that a room's KV goes to."""


class QueueByDecode(list[Untyped]):
    """The manager's list of queues, from which SGLang takes one by number: whatever the number, it is `chosen`.

    The scheduler alone takes from it, between `choose` and the end of its call.
    """

    chosen: Untyped = None

    def __init__(self, manager: Untyped) -> None:
        super().__init__(manager.transfer_queues)
        self._manager = manager
        self._number_of: dict[Decode, int] = {}

    def __getitem__(self, number: Untyped) -> Untyped:
        return super().__getitem__(number) if self.chosen is None else self.chosen

    def choose(self, decode: Decode) -> None:
        """The next one that is taken is this decode's: one of those that there were at the start, or one more."""
        number = self._number_of.get(decode)
        if number is None:
            number = len(self._number_of)
            if number >= len(self):
                number = self._another() if self._manager._dcp_pack_buffers is None else number % len(self)
            self._number_of[decode] = number
        self.chosen = super().__getitem__(number)

    def _another(self) -> int:
        from sglang.srt.disaggregation.common.utils import FastQueue

        queue, number = FastQueue(), len(self)
        self.append(queue)
        threading.Thread(
            target=self._manager.transfer_worker,
            args=(queue, None, number),
            name=f"dsv4-transfer-{number}",
            daemon=True,
        ).start()
        logger.info("dsv4 transfer worker %d: prefill has known more decode workers than it had", number)
        return number


def add_transfer_request(
    original: Untyped, manager: Untyped, bootstrap_room: int, *arguments: Untyped, **named: Untyped
) -> Untyped:
    """Around the queueing of a chunk."""
    infos = manager.transfer_infos.get(bootstrap_room)
    # With staging each worker has a buffer of its own, made at the start.
    if infos is None or manager.enable_staging:
        return original(manager, bootstrap_room, *arguments, **named)
    queues = manager.transfer_queues
    if not isinstance(queues, QueueByDecode):
        queues = manager.transfer_queues = QueueByDecode(manager)
    queues.choose(frozenset((info.endpoint, info.dst_port) for info in infos.values()))
    try:
        return original(manager, bootstrap_room, *arguments, **named)
    finally:
        queues.chosen = None
