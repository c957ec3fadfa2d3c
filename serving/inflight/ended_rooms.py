"""The bootstrap rooms that ended badly on prefill, so that a decode which asks for one later is told at once.

Decode may ask for a room after prefill has given it up: its scheduler was stopped, or busy, or the abort was faster.
SGLang would then open the room again for nobody, and decode would wait out its own 300 s.
"""

import threading
from collections import OrderedDict

KEPT_S = 900.0
"""Three times as long as decode waits for a room by default."""

KEPT_ROOMS = 65_536


class EndedRooms:
    """Rooms and why they ended; bounded in time and number, and safe to use from several threads."""

    def __init__(self, kept_s: float = KEPT_S, kept_rooms: int = KEPT_ROOMS) -> None:
        self._kept_s, self._kept_rooms = kept_s, kept_rooms
        self._rooms: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rooms)

    def add(self, room: int, reason: str, now_s: float) -> None:
        """This room ended, for this reason. The first reason stays, as long as it is kept."""
        with self._lock:
            while self._rooms and now_s - next(iter(self._rooms.values()))[0] > self._kept_s:
                self._rooms.popitem(last=False)
            self._rooms.setdefault(room, (now_s, reason))
            if len(self._rooms) > self._kept_rooms:
                self._rooms.popitem(last=False)

    def forget(self, room: int) -> None:
        """The room is opened anew by a request."""
        with self._lock:
            self._rooms.pop(room, None)

    def reason(self, room: int) -> str | None:
        """Why this room ended; None when it did not, or too long ago."""
        with self._lock:
            found = self._rooms.get(room)
        return found[1] if found else None
