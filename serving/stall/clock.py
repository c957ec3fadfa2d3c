"""How long each request has waited for a scheduler that does not move: pure."""

from collections.abc import Iterable
from typing import Final

LATE: Final = 2.0
"""A look counts for at most so many times the interval between looks: when it is later, who looks was held up too."""


class StallClock:
    """Counts the time in which a scheduler was looked at and did not move, for each of the requests it has.

    Only time that was watched counts. A process that was stopped together with its scheduler finds, when both go on,
    that the clock has jumped, and nothing says that the scheduler stood still while nobody looked.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._watched_s = 0.0
        self._looked_at_s: float | None = None
        self._shown: object = None
        self._moved_s: float | None = None
        self._since_s: dict[str, float] = {}

    @property
    def has_moved(self) -> bool:
        """Whether it has ever been seen to move. One that has not may be one whose moves cannot be seen."""
        return self._moved_s is not None

    @property
    def still_s(self) -> float:
        """For how long it has been watched not to move, in seconds; 0 of one that was never seen to move."""
        return self._watched_s - self._moved_s if self._moved_s is not None else 0.0

    def look(self, now_s: float, shown: object, pending: Iterable[str]) -> None:
        """At `now_s` the scheduler shows this, which changes whenever it moves, and has these requests.

        A look that shows None could not see it, and counts as no time.
        """
        gap_s = now_s - self._looked_at_s if self._looked_at_s is not None else 0.0
        self._looked_at_s = now_s
        if shown is not None:
            self._watched_s += min(gap_s, LATE * self._every_s)
            if self._shown is not None and shown != self._shown:
                self._moved_s = self._watched_s
            self._shown = shown
        self._since_s = {rid: self._since_s.get(rid, self._watched_s) for rid in pending}

    def overdue(self, limit_s: float) -> dict[str, float]:
        """The requests that have waited `limit_s` or longer since it last moved, each with how long, in seconds."""
        if self._moved_s is None:
            return {}
        waits = {rid: self._watched_s - max(since_s, self._moved_s) for rid, since_s in self._since_s.items()}
        return {rid: wait_s for rid, wait_s in waits.items() if wait_s >= limit_s}


def every_s(limit_s: float) -> float:
    """How often to look, in seconds, so that a request is ended soon after `limit_s`."""
    return min(1.0, limit_s / 10)
