"""The inflight figures in the answer of /v1/loads: cheap to ask for, and as fresh as the scheduler's own load.

A scheduler publishes its load as one msgpack map in shared memory, and the HTTP process reads it from there. Ours
travels in the same map under the key `dsv4`, so it is of the same moment; a reader that does not know it skips it.
"""

import time
from collections.abc import Callable
from typing import Any

from serving.inflight.report import Inflight, Outcome, State


class Published:
    """A report that keeps what it was last told, for the next load that this process publishes."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._inflight: Inflight | None = None
        self._refreshed_at = 0.0
        self._fires = 0
        self._unstamped = 0

    def show(self, inflight: Inflight) -> None:
        """As `Report.show`."""
        self._inflight = inflight
        self._refreshed_at = self._wall_clock()

    def left(self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool) -> None:
        """As `Report.left`; how requests ended is in the metrics."""

    def fired(self, state: State) -> None:  # noqa: ARG002  by state in the metrics
        """As `Report.fired`."""
        self._fires += 1

    def unstamped(self) -> None:
        """As `Report.unstamped`."""
        self._unstamped += 1

    def section(self) -> dict[str, Any] | None:
        """The figures as they go into a load; None before the first `show`."""
        inflight = self._inflight
        if inflight is None:
            return None
        return {
            "by_state": dict(inflight.by_state),
            "health_checks": inflight.health_checks,
            "held": inflight.held,
            "settling": inflight.settling,
            "oldest_age_s": inflight.oldest_age_s,
            "oldest_rid_hash": f"{inflight.oldest_rid_hash:08x}",
            "since_progress_s": inflight.since_progress_s,
            "timeout_s": inflight.timeout_s,
            "refreshed_at": self._refreshed_at,
            "fires_total": self._fires,
            "unstamped_total": self._unstamped,
        }


_published: Published | None = None


def publish_inflight() -> Published:
    """A report whose figures this process's loads carry from now on: SGLang runs one scheduler in a process."""
    global _published
    _published = Published()
    return _published
