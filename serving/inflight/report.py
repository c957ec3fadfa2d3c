"""What the inflight queue reports, as values; telemetry turns them into metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["failed", "bootstrapping", "waiting_for_input", "transferring", "success"]
"""Where the transfer of a request in the queue stands on this rank: SGLang's KVPoll, in lower case and in its order.

`bootstrapping` is a parked request: its prefill is done and its decode has not yet asked for it. `failed` and
`success` are over on this rank, and wait for the next poll or for the other ranks.
"""

Outcome = Literal["success", "failed", "aborted", "timeout", "requeued"]
"""How a request left: `timeout` is the watchdog's, `aborted` an abort's, `failed` any other failure of its transfer.

`requeued` is an optimistic prefill that gave its place back.
"""

Stratum = Literal["first", "up_to_1MiB", "up_to_16MiB", "up_to_256MiB", "up_to_4GiB", "more"]
"""Which requests should take about as long: those whose connection has yet to be made, the others by their KV."""


@dataclass(frozen=True)
class Inflight:
    """The queue at one moment, health checks apart.

    `settling` counts requests that have ended and whose pages are kept until their transfer is over; they are in no
    state any more. `standing_timeout_s` comes back when a lease on `timeout_s` ends; they are the same where none runs.
    `held` counts canaries whose transfer is held back, which are also counted in their state.
    `oldest_rid_hash` is 32 bits of a hash of the oldest request's id, 0 when there is none.
    """

    by_state: Mapping[State, int]
    health_checks: int
    held: int
    settling: int
    oldest_age_s: float
    oldest_rid_hash: int
    since_progress_s: float
    timeout_s: float
    standing_timeout_s: float


class Report(Protocol):
    """Where the queue reports to. Each call must cost microseconds and never raise."""

    def show(self, inflight: Inflight) -> None:
        """The queue is so now: on every change, and at least once a second while anything is in it."""

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None:
        """A request left the queue after `dwell_s` in it. Health checks have no stratum, nor has what comes again."""

    def fired(self, state: State) -> None:
        """The watchdog ended a request that was in this state."""

    def unstamped(self) -> None:
        """A request was found in the queue that had not been seen entering it."""


class Silent:
    """A report that goes nowhere: on ranks that export no metrics."""

    def show(self, inflight: Inflight) -> None: ...

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None: ...

    def fired(self, state: State) -> None: ...

    def unstamped(self) -> None: ...
