"""The thread of a decode rank that notices a prefill worker which is gone, also when another answers in its place.

SGLang asks a prefill's bootstrap server every few seconds whether it is healthy, and takes two failures for its death.
A worker that is restarted within that time never fails: decode keeps the ports of the one before, and every request
hangs. And what decode keeps back for a transfer of the dead one would be kept for ever.
"""

import logging
import threading
import time
from typing import Final

from serving.inflight import quarantine
from serving.peers import line
from serving.peers.line import Line
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
IN_DOUBT_S: Final = 0.2


def start(manager: Untyped, *_: Untyped) -> None:
    """After decode has made its KV manager: watch over the prefill workers that it has connected to.

    SGLang's backend for benchmarks, `fake`, connects to none.
    """
    from sglang.srt.disaggregation.common.conn import CommonKVManager

    if not isinstance(manager, CommonKVManager):
        return
    threading.Thread(target=PrefillWatch(manager).run, name="dsv4-lost-prefill", daemon=True).start()


class PrefillWatch:
    """What one decode rank knows of the prefill ranks that it sends to. All of it runs in one thread."""

    def __init__(self, manager: Untyped) -> None:
        self._manager = manager
        self._lines: dict[tuple[str, str, int], Line] = {}
        self._silent: set[tuple[str, str, int]] = set()
        self._unseen: set[tuple[str, str, int]] = set()

    def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                self.look()
            except Exception:
                # A thread that ends would leave a restarted prefill unnoticed.
                logger.exception("dsv4 lost prefill: a look failed; the next is in %g s", EVERY_S)
                time.sleep(EVERY_S)
            in_doubt = any(not held.is_open for held in self._lines.values())
            line.wait([held for held in self._lines.values() if held.is_open], IN_DOUBT_S if in_doubt else EVERY_S)

    def look(self) -> None:
        """One look at the ranks that decode has sent to; drops a prefill of which one is gone.

        A rank is watched until it refuses a connection, also when decode has dropped it: a prefill that answers its
        heartbeat badly, or whose host is silent, may be stopped and not dead, and what it can still write must be kept
        until it is.
        """
        cached = self._cached()
        for key in cached:
            self._lines.setdefault(key, Line(key[1:]))
        for key, held in list(self._lines.items()):
            if not self._has_looked(key, held):
                continue
            if held.is_open:
                self._silent.discard(key)
            elif held.is_refused:
                del self._lines[key]
                self._silent.discard(key)
                self._lost(key[0], held, is_cached=key in cached)
            elif held.is_gone:
                self._lines[key] = Line(key[1:])
                if key not in self._silent:
                    self._silent.add(key)
                    self._lost(key[0], held, is_cached=key in cached)

    def _has_looked(self, key: tuple[str, str, int], held: Line) -> bool:
        """Whether it could be looked at; one address that cannot hides none of the others."""
        try:
            held.look()
        except OSError as error:
            if key not in self._unseen:
                self._unseen.add(key)
                logger.warning(
                    "dsv4 lost prefill: cannot look at %s:%d (%s); it is taken to be alive", *held.address, error
                )
            return False
        self._unseen.discard(key)
        return True

    def _lost(self, address: str, held: Line, *, is_cached: bool) -> None:
        held.close()
        logger.warning("dsv4 prefill gone address=%s rank_port=%d why=%r", address, held.address[1], held.why)
        with self._manager.connection_lock:
            rooms = list(self._manager.addr_to_rooms_tracker.get(address, ()))
        if held.is_refused:
            quarantine.here.prefill_lost(address, rooms)
        if is_cached and any(key[0] == address for key in self._cached()):
            self._manager._handle_node_failure(address)

    def _cached(self) -> set[tuple[str, str, int]]:
        """(bootstrap address, host, port of the control socket) of each prefill rank that decode would send to."""
        with self._manager.connection_lock:
            pool = {key: list(infos) for key, infos in self._manager.connection_pool.items()}
        # A key is the address and three numbers: the ranks in data, context and tensor parallelism.
        return {
            (key.rsplit("_", 3)[0], str(info["rank_ip"]), int(info["rank_port"]))
            for key, infos in pool.items()
            for info in infos
        }
