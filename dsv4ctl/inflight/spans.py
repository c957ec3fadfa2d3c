"""For how long a queue was seen to hold something, without a break that was seen."""

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Final

LONGEST_GAP_S: Final = 60.0
"""Two looks that are further apart say nothing of the time in between: twice what the slowest source needs."""

KEPT: Final = 1000


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


@dataclass
class _Total:
    """All spans of a queue that are over."""

    spans: int = 0
    longest_s: float = 0.0


class Spans:
    """Collects them as looks come. Of those that are over it keeps the last `KEPT`, however long a watch goes on."""

    def __init__(self) -> None:
        self._open: dict[str, Span] = {}
        self._ended: deque[Span] = deque(maxlen=KEPT)
        self._totals: dict[str, _Total] = defaultdict(_Total)

    def look(self, queue: str, at_s: float, count: int) -> None:
        """One look at a queue, later than those before."""
        span = self._open.get(queue)
        if not count:
            if span is not None:
                self._end(replace(self._open.pop(queue), ended=True))
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
            self._end(replace(span, lost=True))

    def _end(self, span: Span) -> None:
        self._ended.append(span)
        total = self._totals[span.queue]
        total.spans += 1
        total.longest_s = max(total.longest_s, span.seen_s)

    def number(self, queue: str | None = None) -> int:
        """How many there were, of one queue or of all, those included that are not kept and those that are not over."""
        still = [span for span in self._open.values() if queue in (None, span.queue)]
        over = [total.spans for name, total in self._totals.items() if queue in (None, name)]
        return len(still) + sum(over)

    def longest_s(self, queue: str) -> float:
        """For how long the longest one of a queue was seen, in seconds; 0 where there was none."""
        span, total = self._open.get(queue), self._totals.get(queue)
        return max(span.seen_s if span is not None else 0.0, total.longest_s if total is not None else 0.0)

    def all(self) -> tuple[Span, ...]:
        """The last that are over and those that are not, in the order in which they began."""
        return tuple(sorted([*self._ended, *self._open.values()], key=lambda span: span.began_s))
