"""Who is in prefill's inflight queue, and since when: stamps on the monotonic clock, kept apart from the engine.

A pass of the scheduler over a full queue takes a millisecond, and happens a thousand times a second; so nothing here
looks at every request on every pass. Requests enter in the order of their stamps and share one timeout, so only the
oldest need be asked whether it is over.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Entry:
    """One request in the queue. `entered_s` is when its clock started; `parked` means that it has not started yet.

    `ended_with` is why we ended it, None as long as we have not.
    """

    entered_s: float
    parked: bool = False
    health_check: bool = False
    lease_ends_s: float | None = None
    ended_with: str | None = None


class Ledger(Generic[Key]):
    """The requests in the queue, oldest first. A key is the request itself: ids can repeat, objects cannot."""

    def __init__(self) -> None:
        self._running: dict[Key, Entry] = {}
        self._parked: dict[Key, Entry] = {}
        self._leased: dict[Key, Entry] = {}

    def __len__(self) -> int:
        return len(self._running) + len(self._parked)

    def __contains__(self, key: Key) -> bool:
        return key in self._running or key in self._parked

    def get(self, key: Key) -> Entry | None:
        """Its entry, None when it is not in the queue."""
        return self._running.get(key) or self._parked.get(key)

    def enter(
        self,
        key: Key,
        now_s: float,
        *,
        parked: bool = False,
        health_check: bool = False,
        lease_s: float | None = None,
    ) -> Entry:
        """Stamp a request that joins the queue; one that is in it already keeps its stamp.

        A parked request (its decode has not asked for it yet) waits legitimately and has no clock until `start`.
        """
        if known := self.get(key):
            return known
        entry = Entry(now_s, parked, health_check, None if lease_s is None else now_s + lease_s)
        (self._parked if parked else self._running)[key] = entry
        if lease_s is not None:
            self._leased[key] = entry
        return entry

    def start(self, key: Key, now_s: float) -> None:
        """A parked request was asked for: its clock starts now, not when it was parked."""
        if entry := self._parked.pop(key, None):
            entry.parked = False
            entry.entered_s = now_s
            self._running[key] = entry

    def leave(self, key: Key) -> Entry | None:
        """The request is no longer in the queue; its entry, None when it was not known."""
        self._leased.pop(key, None)
        return self._running.pop(key, None) or self._parked.pop(key, None)

    def parked(self) -> tuple[Key, ...]:
        """The requests without a clock."""
        return tuple(self._parked)

    def entries(self) -> Iterator[tuple[Key, Entry]]:
        """All of them: the running ones oldest first, then the parked ones."""
        yield from self._running.items()
        yield from self._parked.items()

    def overdue(self, now_s: float, timeout_s: float) -> list[tuple[Key, Entry]]:
        """The running requests that have been in the queue for `timeout_s` or longer and that we have not ended.

        Looks at the oldest alone when that one is young enough. A timeout of 0 means none.
        """
        if not timeout_s:
            return []
        found: list[tuple[Key, Entry]] = []
        for key, entry in self._running.items():
            if now_s - entry.entered_s < timeout_s:
                break
            if entry.ended_with is None:
                found.append((key, entry))
        return found

    def lease_ended(self, now_s: float) -> list[tuple[Key, Entry]]:
        """The held requests whose lease is over and that we have not ended."""
        if not self._leased:
            return []
        return [
            (key, entry)
            for key, entry in self._leased.items()
            if entry.ended_with is None and entry.lease_ends_s is not None and now_s >= entry.lease_ends_s
        ]

    def held(self) -> int:
        """How many are held canaries."""
        return len(self._leased)

    def oldest(self) -> tuple[Key, Entry] | None:
        """The running request that has been in the queue longest, health checks apart."""
        return next(((key, entry) for key, entry in self._running.items() if not entry.health_check), None)

    def strangers(self, queue: Iterable[Key]) -> tuple[list[Key], list[Key]]:
        """(in `queue` and not known here, known here and not in `queue`)."""
        there = dict.fromkeys(queue)
        return [key for key in there if key not in self], [key for key, _ in self.entries() if key not in there]
