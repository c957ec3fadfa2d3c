"""The watchdog over prefill's inflight queue: no request stays in it past the timeout, whatever its transfer does.

SGLang polls the sender of each request on every pass, and takes the worst status among the ranks; a sender has a
deadline while it waits for its decode, and none afterwards. So the deadline is checked here, before that poll: past it
the room is failed, which the same poll then carries to all ranks, and decode is told, which ends its half with the
same words. What happens to the pages is the business of `serving.inflight.settle`.

Only what a poll has left in the queue when it was overdue is ended. After a pass that took longer than the timeout (a
kernel was compiled, generation was paused) all is overdue, and most of it has arrived: the next poll takes that out.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable
from typing import Final, get_args

from serving.inflight import hold, settle, strata, timeout, told
from serving.inflight.ledger import Entry, Ledger
from serving.inflight.report import Inflight, Outcome, Report, State
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

SHOWN_EVERY_S: Final = 0.25
"""How often the report is refreshed while something is in the queue and nothing changes."""

FEW: Final = 64
"""A change is shown at once while so few are in the queue: the next pass may follow a long batch."""

CHANGES_SHOWN_EVERY_S: Final = 0.05
"""How often one is shown at most with more: to look at 512 requests takes 0.3 ms, and hundreds may go in a second."""

ENDED: Final = "inflight timeout"
"""The words that each message of the watchdog begins with."""

ELSEWHERE: Final = "unfinished on another rank"

OTHER_RANK_S: Final = 1.0
"""How much longer the ranks wait that do not answer a client: the one that does has the reason then, and so has its
decode. It is also by how much two ranks may differ on when a request entered, which they saw in the same pass."""

STATES: Final[tuple[State, ...]] = get_args(State)
"""At the index that is their value in SGLang's KVPoll."""


class Watchdog:
    """That of one prefill scheduler. Its methods are called from the scheduler's own thread alone."""

    def __init__(
        self,
        scheduler: Untyped,
        timeout_s: float,
        report: Callable[[], Report],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._report_later = report
        self._report: Report | None = None
        self._next_show_s = self._shown_s = 0.0
        self._progress_s = clock()
        self._seen: tuple[object, ...] = ()
        self.is_shown_empty = False
        self._patience_s, self._is_one_of_many = _place()
        self._looked_s = self._polled_s = -math.inf
        self._use(timeout.InForce.standing(timeout_s))
        self.ledger: Ledger[Untyped] = Ledger()
        self.fires = 0

    @property
    def report(self) -> Report:
        """Made on the first pass: the engine has its metrics only after its queues."""
        if self._report is None:
            self._report = self._report_later()
            self._show(self._clock())
        return self._report

    def entered(self, requests: list[Untyped]) -> None:
        """These requests joined the queue; their prefill is done."""
        now = self._clock()
        for request in requests:
            self._stamp(request, now)
        self._progress_s = now
        self._changed(now)

    def before_poll(self, queue: list[Untyped]) -> None:
        """End what is overdue, so that the poll which follows sees it as failed."""
        now = self.look(queue)
        ledger = self.ledger
        limit_s = self.timeout_s and self.timeout_s + self._patience_s
        for request, entry in ledger.overdue(min(now, self._polled_s), limit_s):
            self._fire(request, entry, now)
        for request, entry in ledger.lease_ended(now):
            self._end(request, entry, f"the lease of this held canary ended after {now - entry.entered_s:.1f} s")
        if now >= self._next_show_s:
            self._show(now)

    def look(self, queue: list[Untyped]) -> float:
        """See that everything in the queue has its clock. Returns the time of it."""
        now = self._looked_s = self._clock()
        ledger = self.ledger
        if len(ledger) != len(queue):
            self._reconcile(queue, now)
        for request in ledger.parked():
            if not request.pending_bootstrap:
                ledger.start(request, now)
        return now

    def after_poll(self, done: list[Untyped], queue: list[Untyped]) -> None:
        """The poll took these requests out of the queue, and left the others in it."""
        self._polled_s = self._looked_s
        if done:
            now = self._clock()
            for request in done:
                self._left(request, now)
        if len(queue) != len(self.ledger):
            self._reconcile(queue, self._clock())
        if done:
            self._changed(self._clock())

    def joins(self, request: Untyped) -> None:
        """The poll found this request failed: if another rank's watchdog ended it, this rank ends its half as well.

        Only the rank that ends a request has its reason, the others see the status alone. Each decode rank is told by
        its own prefill rank, and the one that answers the client should have the reason.
        """
        entry = self.ledger.get(request)
        if entry is None or entry.ended_with is not None or not self._is_one_of_many or not self.timeout_s:
            return
        age = self._clock() - entry.entered_s
        if age < self.timeout_s - OTHER_RANK_S or has_failed_here(request.disagg_kv_sender):
            return
        self._end(request, entry, self._reason(_here(state_of(request)), age))

    def message(self, request: Untyped) -> str | None:
        """Why the watchdog ended this request; None if it did not."""
        entry = self.ledger.get(request)
        return entry.ended_with if entry else None

    def nothing_inflight(self) -> None:
        """A pass over an empty queue: what is still kept or was last shown may have changed."""
        now = self._clock()
        if len(self.ledger):
            self._reconcile([], now)
        if not self.is_shown_empty or now >= self._next_show_s:
            self._show(now)

    def set_timeout(self, change: timeout.Change) -> None:
        """From the next pass on this is the timeout, for what is in the queue already too."""
        before, now = self.in_force, self._clock()
        after = change.after(now)
        if after == before:
            return
        self._use(after)
        logger.info(
            "dsv4 inflight timeout set rank=%s before_s=%g now_s=%g standing_s=%g lease_s=%g",
            *(self._rank(), before.timeout_s, after.timeout_s, after.standing_s, after.lease_left_s(now)),
        )
        self._show(now)

    def mind_lease(self) -> None:
        """Where a lease is over, the timeout that stood before it comes back."""
        now = self._clock()
        before, after = self.in_force, self.in_force.at(now)
        if after is before:
            return
        self._use(after)
        logger.warning(
            "dsv4 inflight timeout lease ended rank=%s before_s=%g now_s=%g",
            *(self._rank(), before.timeout_s, after.timeout_s),
        )
        self._show(now)

    def lease_left_s(self) -> float:
        """How much longer a lease on the timeout runs; 0 where none does."""
        return self.in_force.lease_left_s(self._clock())

    def _use(self, in_force: timeout.InForce) -> None:
        self.in_force = in_force
        self.timeout_s = in_force.timeout_s
        self.has_lease = math.isfinite(in_force.lease_ends_s)

    def _stamp(self, request: Untyped, now: float) -> None:
        lease = hold.lease_of(request.rid) if hold.allowed() else None
        self.ledger.enter(
            request,
            now,
            parked=request.pending_bootstrap,
            health_check=not hasattr(request.disagg_kv_sender, "_transfer_metric"),
            lease_s=lease,
        )

    def _fire(self, request: Untyped, entry: Entry, now: float) -> None:
        state = state_of(request)
        if state == "failed" or (state == "success" and not self._is_one_of_many):
            # The poll that follows takes it out. Among several ranks success on this one is not the end: that it is
            # still here means that another has not finished.
            return
        age = now - entry.entered_s
        self._end(request, entry, self._reason(_here(state), age))
        self.fires += 1
        logger.warning(
            "dsv4 inflight timeout rid=%s room=%s state=%s age_s=%.3f timeout_s=%g rank=%s",
            request.rid,
            request.bootstrap_room,
            state,
            age,
            self.timeout_s,
            self._rank(),
        )
        self.report.fired(state)

    def _end(self, request: Untyped, entry: Entry, reason: str) -> None:
        entry.ended_with = reason
        told.end_room(request.disagg_kv_sender, reason)

    def _reason(self, state: str, age: float) -> str:
        return (
            f"{ENDED}: the KV of this request was {state} for {age:.1f} s after its prefill, and the limit is "
            f"{self.timeout_s:g} s ({timeout.VARIABLE}); its transfer to decode did not end"
        )

    def _left(self, request: Untyped, now: float) -> None:
        entry = self.ledger.leave(request)
        if entry is None:
            return
        self._progress_s = now
        outcome = _outcome(request, entry)
        is_counted = outcome != "requeued" and not entry.health_check
        stratum = strata.stratum_of(request) if is_counted else None
        size = 0
        if outcome == "success" and not entry.health_check:
            size = request.disagg_kv_sender.get_transfer_metric().transfer_total_bytes or 0
            strata.arrived(request.disagg_kv_sender)
        self.report.left(outcome, now - entry.entered_s, size, health_check=entry.health_check, stratum=stratum)

    def _reconcile(self, queue: list[Untyped], now: float) -> None:
        unstamped, gone = self.ledger.strangers(queue)
        for request in unstamped:
            logger.warning(
                "dsv4 inflight unstamped rid=%s room=%s rank=%s: it entered the queue unseen, and its clock starts now",
                request.rid,
                request.bootstrap_room,
                self._rank(),
            )
            self._stamp(request, now)
            self.report.unstamped()
        for request in gone:
            self._left(request, now)

    def _changed(self, now: float) -> None:
        """Show it now, or as soon as that may be; an empty queue is shown by the next pass, whatever it follows."""
        soonest = self._shown_s + CHANGES_SHOWN_EVERY_S
        if now >= soonest or len(self.ledger) <= FEW:
            self._show(now)
        else:
            self._next_show_s = min(self._next_show_s, soonest)
            self.is_shown_empty = False

    def _show(self, now: float) -> None:
        by_state: dict[State, int] = dict.fromkeys(STATES, 0)
        health_checks = 0
        for request, entry in self.ledger.entries():
            if entry.health_check:
                health_checks += 1
            else:
                by_state[state_of(request)] += 1
        oldest = self.ledger.oldest()
        seen = (*by_state.values(), len(settle.here or ()), oldest and id(oldest[0]))
        if seen != self._seen:
            self._seen, self._progress_s = seen, now
        self._shown_s, self._next_show_s = now, now + SHOWN_EVERY_S
        self.is_shown_empty = not len(self.ledger) and not settle.here
        self.report.show(
            Inflight(
                by_state=by_state,
                health_checks=health_checks,
                held=self.ledger.held(),
                settling=len(settle.here or ()),
                oldest_age_s=now - oldest[1].entered_s if oldest else 0.0,
                oldest_rid_hash=rid_hash(oldest[0].rid) if oldest else 0,
                since_progress_s=now - self._progress_s if len(self.ledger) else 0.0,
                timeout_s=self.timeout_s,
                standing_timeout_s=self.in_force.standing_s,
            )
        )

    def _rank(self) -> str:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return f"tp{parallel.tp_rank}/pp{parallel.pp_rank}/dp{parallel.dp_rank or 0}"


def _here(state: State) -> str:
    """What kept a request, as far as this rank knows: any rank's words may be those that the client gets."""
    return ELSEWHERE if state in {"success", "failed"} else f"in state {state}"


def _place() -> tuple[float, bool]:
    """(how much longer than the timeout this rank waits, whether others share its requests)."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    answers = parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0
    shared = parallel.attn_tp_size * parallel.attn_cp_size * parallel.pp_size > 1
    return 0.0 if answers else OTHER_RANK_S, shared


def has_failed_here(sender: Untyped) -> bool:
    """Whether this rank has a reason of its own for the failure of this sender's room."""
    manager = sender.kv_mgr
    with manager.failure_lock:
        return sender.bootstrap_room in manager.failure_records


def rid_hash(rid: str) -> int:
    """32 bits of a hash of a request id, never 0: tells one request from another without naming it."""
    return int.from_bytes(hashlib.blake2s(rid.encode(), digest_size=4).digest(), "big") or 1


def state_of(request: Untyped) -> State:
    """Where the transfer of a request stands on this rank, as its sender or its manager last knew."""
    sender = request.disagg_kv_sender
    status = sender.conclude_state
    if status is None:
        status = getattr(sender.kv_mgr, "request_status", {}).get(sender.bootstrap_room)
    return "failed" if status is None else STATES[int(status)]


def _outcome(request: Untyped, entry: Entry) -> Outcome:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    if request.finished_reason is None:
        return "requeued"
    if not isinstance(request.finished_reason, FINISH_ABORT):
        return "success"
    # A client chooses its request's id, which the engine's messages name.
    message = (request.finished_reason.message or "").replace(request.rid, "")
    if ENDED in message or (entry.ended_with or "").startswith(ENDED):
        return "timeout"
    return "aborted" if "Aborted by" in message or entry.ended_with else "failed"
