"""What is to become of the requests on a prefill rank, given which of its decode workers are gone: pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

NO_DECODE: Final = "no decode worker is alive"


@dataclass(frozen=True)
class Peer:
    """A decode worker as a prefill rank knows it: `name` is its NIXL agent or its Mooncake session."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        """Where its control socket listens."""
        return (self.host, self.port)


@dataclass(frozen=True)
class Gone:
    """A decode worker that is not there any more, since `at_s` on the monotonic clock, and what shows it."""

    peer: Peer
    why: str
    at_s: float

    @property
    def reason(self) -> str:
        """What the client of one of its requests is told."""
        return (
            f"decode worker {self.peer.host}:{self.peer.port} ({self.peer.name}) is gone: it {self.why}; "
            "the KV of this request has nowhere to go, send the request again"
        )


@dataclass
class Waiting:
    """Rooms that wait for somebody, with since when, as far as this has been looked at."""

    since_s: dict[int, float] = field(default_factory=dict)

    def look(self, rooms: Iterable[int], now_s: float) -> None:
        """These wait now."""
        self.since_s = {room: self.since_s.get(room, now_s) for room in rooms}

    def postpone(self, by_s: float) -> None:
        """For so long nobody could have come for them: that time does not count."""
        self.since_s = {room: since_s + by_s for room, since_s in self.since_s.items()}

    def overdue(self, limit_s: float, now_s: float) -> dict[int, float]:
        """Those that have waited for `limit_s` or longer, with how long."""
        return {room: now_s - since_s for room, since_s in self.since_s.items() if now_s - since_s >= limit_s}


def lost(
    named: Mapping[int, Iterable[str]],
    waiting: Mapping[int, float],
    gone: Mapping[str, Gone],
    *,
    any_alive: bool,
    grace_s: float,
    now_s: float,
) -> dict[int, str]:
    """The rooms that cannot end well any more, each with the reason.

    Args:
        named: rooms that have not ended, with the names of the decode workers that have asked for their KV. One of
            them that is gone is enough: each holds a part of what decode needs.
        waiting: rooms that wait for a decode worker to ask, with since when.
        gone: the workers that are gone, by name. Empty before any has registered, and then no room is lost.
        any_alive: a worker that has registered is there. Then nobody here knows whose a waiting room is.
        grace_s: how long a room may wait while there is none: a worker that was restarted registers with its first
            request.
        now_s: the monotonic clock.
    """
    failed: dict[int, str] = {}
    for room, names in named.items():
        worker = next((gone[name] for name in names if name in gone), None)
        if worker is not None:
            failed[room] = worker.reason
    if gone and not any_alive:
        last_s = now_s - max(worker.at_s for worker in gone.values())
        for room, since_s in waiting.items():
            if room not in failed and now_s - since_s >= grace_s:
                failed[room] = (
                    f"{NO_DECODE}: all {len(gone)} that this prefill worker has known are gone, the last for "
                    f"{last_s:.1f} s, and none has asked for this request in {now_s - since_s:.1f} s "
                    f"(limit {grace_s:g} s); start one and send the request again"
                )
    return failed
