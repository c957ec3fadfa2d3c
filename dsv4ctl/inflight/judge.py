"""From samples to verdicts: one judge for each queue, who remembers what it needs of the samples before.

The patched engine says how old its oldest request is and which: there a verdict is a comparison. A stock engine says
how many there are, and `counts` says what follows from that. The old gauge says how many there were at some time, from
which little follows, and that is what is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsv4ctl.inflight.chance import FALSE_ALARM, SUSPICION
from dsv4ctl.inflight.counts import Clue, CountHistory, Look
from dsv4ctl.inflight.readings import ABORTED
from dsv4ctl.inflight.sample import REFRESH_S, Event, Queue, Sample
from dsv4ctl.inflight.spans import LONGEST_GAP_S
from dsv4ctl.inflight.verdict import Basis, State, Verdict

# An engine publishes about once a second; figures that are older are said to be.
_FRESH_S = 2.0
# Those of the patched engine that are no failure: what is put into the queue again is still under way.
_FINE = frozenset({"success", "requeued", "transferred"})
_MAY_WAIT = "requests may wait before they come to this queue"


@dataclass(frozen=True)
class Limits:
    """How long a request may be inflight before it is called pinned, and figures old before they are stale, in seconds.

    A transfer takes seconds at most. A scheduler publishes every second unless it computes, and no batch takes ten. The
    watchdog ends a request at its timeout: where that is less than twice `pin_after_s`, a request is called pinned at
    half of it, so that it is seen before it is gone.
    """

    pin_after_s: float = 15.0
    stale_after_s: float = 10.0

    def pin_s(self, timeout_s: float | None) -> float:
        """From which age on a request is pinned, under this timeout of the watchdog; None or 0 is none."""
        return min(self.pin_after_s, timeout_s / 2) if timeout_s else self.pin_after_s

    def suspect_s(self, timeout_s: float | None) -> float:
        """From which age on it is suspect."""
        return self.pin_s(timeout_s) / 3


class Judge:
    """Judges the samples of all workers, each worker's in the order in which they were taken."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._queues: dict[tuple[str, int], _QueueJudge] = {}

    def judge(self, sample: Sample) -> tuple[Verdict, ...]:
        """The verdict on each queue of a worker; where it could not be looked at, one on each that it had before."""
        if sample.failure:
            ranks = sorted(rank for worker, rank in self._queues if worker == sample.worker) or [0]
            return tuple(
                Verdict(sample.worker, rank, sample.at_s, "unreachable", "seen", (sample.failure,)) for rank in ranks
            )
        found = []
        for queue in sample.queues:
            judge = self._queues.setdefault((sample.worker, queue.dp_rank), _QueueJudge(self._limits))
            found.append(judge.judge(sample, queue))
        there = {queue.dp_rank for queue in sample.queues}
        missing = sorted(rank for worker, rank in self._queues if worker == sample.worker and rank not in there)
        words = "the worker answers, and says nothing of this rank any more"
        found += [Verdict(sample.worker, rank, sample.at_s, "unreachable", "seen", (words,)) for rank in missing]
        return tuple(found)


@dataclass
class _QueueJudge:
    """One queue, from sample to sample."""

    limits: Limits
    started: str | None = None
    fires: int | None = None
    fires_counted: int = 0
    fires_logged: int = 0
    left: float | None = None
    left_how: Mapping[str, float] = field(default_factory=dict)
    last: Queue | None = None
    last_s: float = 0.0
    occupied_since_s: float | None = None
    pinned_request: str | None = None
    pinned: bool = False
    ended_badly: str = ""
    histories: dict[str, CountHistory] = field(default_factory=dict)

    def judge(self, sample: Sample, queue: Queue) -> Verdict:
        """The verdict, and everything that the next one needs."""
        left = queue.left if queue.left is not None else _left_in_all(sample.left)
        if self._is_another_engine(sample, queue, left):
            self._forget()
        fired = self._fired(sample, queue)
        self.started = sample.started or self.started
        moved = left is not None and self.left is not None and left > self.left
        self.left = left
        self.ended_badly = self._ended_badly(sample) if moved else ""
        self.left_how = sample.left
        if not queue.count:
            self.occupied_since_s = None
        elif self.occupied_since_s is None or sample.at_s - self.last_s > LONGEST_GAP_S:
            self.occupied_since_s = sample.at_s
        verdict = fired or self._stale(sample, queue) or self._by_source(sample, queue, moved=moved)
        self.pinned = verdict.state == "pinned"
        if self.pinned:
            self.pinned_request = verdict.request
        self.last, self.last_s = queue, sample.at_s
        return verdict

    def _ended_badly(self, sample: Sample) -> str:
        """Which of those that have left the worker's queues since the sample before were no success."""
        more = {how: count - self.left_how.get(how, 0.0) for how, count in sample.left.items() if how not in _FINE}
        words = [f"{count:g} as {how}" for how, count in more.items() if count > 0]
        return f", {' and '.join(words)}" if words and self.left_how else ""

    def _gone(self, *, moved: bool) -> str:
        return f"requests have left since the last sample{self.ended_badly}" if moved else "nothing is inflight"

    def _empty(self, sample: Sample, queue: Queue, *, moved: bool) -> Verdict:
        kept_out = ""
        silent_s = sample.decode.silent_s if sample.decode is not None else 0.0
        if sample.decodes_away:
            kept_out = f"{sample.decodes_away} decode {_workers(sample.decodes_away)} not answer: {_MAY_WAIT}"
        elif silent_s > self.limits.stale_after_s:
            kept_out = f"a decode scheduler has published nothing for {silent_s:.0f} s: {_MAY_WAIT}"
        state: State = "flowing" if moved else "idle"
        evidence = filter(None, (self._gone(moved=moved), kept_out))
        # Up to 0.5.18 SGLang publishes nothing while anything is inflight and no batch is: an old 0 may not be one now.
        basis: Basis = "seen" if (queue.written_age_s or 0.0) <= _FRESH_S else "unsure"
        return self._say(sample, queue, state, basis, *evidence, kept_out=kept_out)

    def _is_another_engine(self, sample: Sample, queue: Queue, left: float | None) -> bool:
        """Whether the engine was started anew since the sample before: counters that only grow have fallen."""
        if self.started is not None and sample.started is not None and sample.started != self.started:
            return True
        fewer_left = left is not None and self.left is not None and left < self.left
        return fewer_left or (queue.fires is not None and self.fires is not None and queue.fires < self.fires)

    def _forget(self) -> None:
        """The engine was started anew: nothing of it is what it was, and its counters began at 0."""
        for name, value in _QueueJudge(self.limits, fires=0, left=0.0).__dict__.items():
            setattr(self, name, value)

    def _fired(self, sample: Sample, queue: Queue) -> Verdict | None:
        """The watchdog's own word for it, by its counter or its line: a count that fell proves nothing."""
        before, self.fires = self.fires, queue.fires if queue.fires is not None else self.fires
        lines = self._fire_lines(sample, queue)
        more = max(0, queue.fires - before) if queue.fires is not None and before is not None else 0
        # The line of a fire and its counter may be seen at different looks: it is one fire.
        told = max(self.fires_counted, self.fires_logged)
        self.fires_counted += more
        self.fires_logged += len(lines)
        fired = max(self.fires_counted, self.fires_logged) - told
        if fired <= 0:
            return None
        evidence = [f"the watchdog's counter rose by {more}"] if more else []
        evidence += [event.text for event in lines]
        eldest = max(lines, key=lambda event: event.age_s or 0.0, default=None)
        of_request: dict[str, Any] = {"fired": fired}
        if eldest is not None:
            of_request |= {"request": eldest.rid, "oldest_s": eldest.age_s}
        elif self.last is not None and self._has_come_of_age(self.last, sample.at_s - self.last_s):
            of_request |= {"request": self.last.oldest_id, "oldest_s": self.last.oldest_age_s}
        return self._say(sample, queue, "fired", "seen", *evidence, **of_request)

    @staticmethod
    def _has_come_of_age(queue: Queue, later_s: float) -> bool:
        """Whether the oldest of a look can be one that the watchdog has ended so much later."""
        return bool(queue.timeout_s and (queue.oldest_age_s or 0.0) + later_s >= queue.timeout_s)

    @staticmethod
    def _fire_lines(sample: Sample, queue: Queue) -> list[Event]:
        """The watchdog's lines for this rank, and for the first one those of ranks that the engine does not show."""
        shown = [each.dp_rank for each in sample.queues]
        mine = {queue.dp_rank}
        lines = [event for event in sample.events if event.kind == "fired"]
        if queue.dp_rank == min(shown):
            mine |= {event.dp_rank for event in lines if event.dp_rank not in shown}
        return [event for event in lines if event.dp_rank in mine]

    def _stale(self, sample: Sample, queue: Queue) -> Verdict | None:
        age_s = queue.written_age_s
        if age_s is None or age_s <= self.limits.stale_after_s:
            return None
        words = f"the scheduler has published nothing for {age_s:.0f} s: the {queue.count} is of that time"
        return self._say(sample, queue, "stale", "seen", words)

    def _by_source(self, sample: Sample, queue: Queue, *, moved: bool) -> Verdict:
        if queue.source == "dsv4":
            return self._by_age(sample, queue, moved=moved)
        if queue.source == "loads":
            return self._by_counts(sample, queue, moved=moved)
        return self._by_old_counts(sample, queue, moved=moved)

    def _by_age(self, sample: Sample, queue: Queue, *, moved: bool) -> Verdict:
        age_s = queue.oldest_age_s or 0.0
        if not queue.count:
            return self._empty(sample, queue, moved=moved)
        states = ", ".join(f"{count} {state}" for state, count in queue.by_state.items() if count)
        held = f", {queue.held} held on request" if queue.held else ""
        limit = f"{queue.timeout_s:g} s" if queue.timeout_s else "none"
        words = f"the oldest has been inflight for {age_s:.1f} s ({states}{held}; the watchdog's limit: {limit})"
        of_oldest: dict[str, Any] = {"oldest_s": age_s, "request": queue.oldest_id}
        if age_s < self.limits.suspect_s(queue.timeout_s):
            return self._say(sample, queue, "flowing", "seen", words, **of_oldest)
        if age_s < self.limits.pin_s(queue.timeout_s):
            return self._say(sample, queue, "suspect", "seen", words, **of_oldest)
        again = queue.oldest_id == self.pinned_request if self.pinned_request is not None else None
        return self._say(sample, queue, "pinned", "seen", words, pinned=1, again=again, **of_oldest)

    def _by_counts(self, sample: Sample, queue: Queue, *, moved: bool) -> Verdict:
        history = self.histories.setdefault(queue.source, CountHistory(REFRESH_S[queue.source]))
        written_s = sample.at_s - (queue.written_age_s or 0.0)
        if history.last is None or written_s - history.last.at_s >= REFRESH_S[queue.source]:
            history.add(Look(written_s, queue.count, self.left, sample.decode, sample.left_age_s))
        if not queue.count:
            return self._empty(sample, queue, moved=moved)
        clues = history.clues()
        sure = [clue for clue in clues if self._is_pin(clue)]
        if sure:
            return self._pinned_by(sample, queue, sure)
        if self.pinned and not moved:
            # What spoke for it may be gone from the window; nothing has come that speaks against it.
            return self._say(sample, queue, "pinned", "followed", "nothing has left since it was pinned", pinned=1)
        doubtful = [clue for clue in clues if self._is_suspect(clue)]
        if doubtful:
            chance = min((clue.chance for clue in doubtful if not clue.certain), default=None)
            return self._say(sample, queue, "suspect", "unsure", *(clue.words for clue in doubtful), chance=chance)
        words = f"{queue.count} inflight, and nothing speaks for a pin"
        if moved:
            return self._say(sample, queue, "flowing", "followed", self._gone(moved=True), words)
        return self._say(sample, queue, "flowing", "unsure", words)

    def _is_pin(self, clue: Clue) -> bool:
        if clue.certain:
            return clue.for_s >= self.limits.pin_after_s
        # One request that takes its time makes a run as long as itself, whatever the odds of many short ones.
        return clue.for_s >= 2 * self.limits.pin_after_s and clue.chance <= FALSE_ALARM

    def _is_suspect(self, clue: Clue) -> bool:
        return clue.for_s >= self.limits.suspect_s(None) and (clue.certain or clue.chance <= SUSPICION)

    def _pinned_by(self, sample: Sample, queue: Queue, clues: Sequence[Clue]) -> Verdict:
        certain = [clue for clue in clues if clue.certain]
        basis: Basis = "followed" if certain else "chance"
        chance = None if certain else min(clue.chance for clue in clues)
        return self._say(
            sample,
            queue,
            "pinned",
            basis,
            *(clue.words for clue in clues),
            pinned=max(clue.pinned for clue in clues),
            oldest_s=max(clue.for_s for clue in certain or clues),
            again=True if self.pinned else None,
            chance=chance,
        )

    def _by_old_counts(self, sample: Sample, queue: Queue, *, moved: bool) -> Verdict:
        """By a figure that may be long out of date, and is of a moment nobody knows."""
        refresh_s = REFRESH_S[queue.source]
        doubt = f"the {queue.source} may be up to {refresh_s:g} s old, and stands still while anything is pinned"
        if not queue.count:
            state: State = "flowing" if moved else "idle"
            return self._say(sample, queue, state, "unsure", f"0 inflight by the {queue.source}", doubt)
        if moved:
            return self._say(sample, queue, "flowing", "unsure", "requests leave the queue", doubt)
        since_s = sample.at_s - (sample.at_s if self.occupied_since_s is None else self.occupied_since_s)
        words = f"never 0 for {since_s:.0f} s by the {queue.source}"
        if since_s >= refresh_s + self.limits.suspect_s(None):
            return self._say(sample, queue, "suspect", "unsure", words, doubt, oldest_s=None)
        return self._say(sample, queue, "flowing", "unsure", words, doubt)

    def _say(
        self,
        sample: Sample,
        queue: Queue,
        state: State,
        basis: Basis,
        *evidence: str,
        **more: Any,  # noqa: ANN401
    ) -> Verdict:
        as_of_s = queue.written_age_s or 0.0
        if as_of_s > _FRESH_S and state != "stale":
            evidence = (*evidence, f"as of {as_of_s:.1f} s ago")
        verdict = Verdict(sample.worker, queue.dp_rank, sample.at_s, state, basis, evidence, queue.count)
        return replace(verdict, as_of_s=as_of_s, **more)


def _left_in_all(left: Mapping[str, float]) -> float | None:
    """How many have left for certain. SGLang counts an abort when it is sent, of a request in any queue; one of this
    queue's is among the failed as well."""
    ways = [count for way, count in left.items() if way != ABORTED]
    return sum(ways) if ways else None


def _workers(count: int) -> str:
    return "worker does" if count == 1 else "workers do"
