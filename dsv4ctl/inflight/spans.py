"""For how long a queue was seen to hold something, without a break that was seen."""

from dataclasses import dataclass, replace
from typing import Final

LONGEST_GAP_S: Final = 60.0
"""Two looks that are further apart say nothing of the time in between: twice what the slowest source needs."""


@dataclass(frozen=True)
class Span:
    """Looks in a row that found something. Seconds since the watch began.

    `began_s` is the first of these looks and `last_s` the last one: the queue was occupied at both, and between two
    looks it may have been empty for a moment. `ended`: a later look found nothing. `lost`: the next one could not see.
    """

    queue: str
    began_s: float
    last_s: float
    most: int
    looks: int
    ended: bool
    lost: bool = False

    @property
    def seen_s(self) -> float:
        """For how long it was seen, at least."""
        return self.last_s - self.began_s


class Spans:
    """Collects them as looks come."""

    def __init__(self) -> None:
        self._open: dict[str, Span] = {}
        self._ended: list[Span] = []

    def look(self, queue: str, at_s: float, count: int) -> None:
        """One look at a queue, later than those before."""
        span = self._open.get(queue)
        if not count:
            if span is not None:
                self._ended.append(replace(self._open.pop(queue), ended=True))
            return
        if span is not None and at_s - span.last_s > LONGEST_GAP_S:
            self.interrupted(queue)
            span = None
        if span is None:
            self._open[queue] = Span(queue, at_s, at_s, count, 1, ended=False)
            return
        self._open[queue] = replace(span, last_s=at_s, most=max(span.most, count), looks=span.looks + 1)

    def interrupted(self, queue: str) -> None:
        """It could not be looked at: what is seen next is no continuation."""
        if span := self._open.pop(queue, None):
            self._ended.append(replace(span, lost=True))

    def all(self) -> tuple[Span, ...]:
        """Those that are over and those that are not, in the order in which they began."""
        return tuple(sorted([*self._ended, *self._open.values()], key=lambda span: span.began_s))
