"""What must be true of an episode, judged from what was seen. Pure: no engine is asked anything here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.stack.faults.episodes import Evidence
from tests.stack.faults.load import Outcome
from tests.stack.faults.observe import Load

FRESH_S = 1.0
"""By how much our figures may lag behind what is there."""

NEAR_S = 0.5
"""Counts that are so near a sample in time are what it may say."""

POLL_S = 2.0
"""The grace of the issue's bound: deadline + 2 s."""

STUCK_LOADS = 4
"""So many loads in a row with the same age are no accident."""

TOLD = ("inflight timeout", "scheduler stall", "is gone", "no decode worker is alive", "lease of this held canary")
"""Beginnings of sentences with which the patched engine ends a request."""


@dataclass(frozen=True)
class Failure:
    """One thing that must not be, and what shows it."""

    code: str
    evidence: str


def failures(evidence: Evidence, *, timeout_s: float) -> tuple[Failure, ...]:
    """Everything that is wrong with an episode of the patched engine; empty when nothing is."""
    checks: Sequence[Callable[[], Iterator[Failure]]] = (
        lambda: wrong_answers((*evidence.outcomes, *evidence.probes)),
        lambda: unanswered(evidence),
        lambda: not_spared(evidence),
        lambda: overstayed(evidence.loads, timeout_s),
        lambda: not_idle(evidence),
        lambda: failed_probes(evidence.probes),
        lambda: stale(evidence),
        lambda: age_frozen(evidence.loads),
        lambda: held_unseen(evidence, timeout_s),
    )
    return tuple(failure for check in checks for failure in check())


def wrong_answers(outcomes: Sequence[Outcome]) -> Iterator[Failure]:
    """An answer with another text than the one right text, whole or not: the context was somebody else's."""
    for outcome in outcomes:
        if not outcome.right:
            expected = outcome.prompt.answer
            yield Failure("WRONG_ANSWER", f"{name_of(outcome)}: {outcome.text!r}, and {expected!r} is right")


def unanswered(evidence: Evidence) -> Iterator[Failure]:
    """A client that waited longer than the bound, or whose answer ended without a word although nobody was killed."""
    fault_s = evidence.done[0].at_s if evidence.done else 0.0
    killed = any(done.action.deed in ("kill decode", "kill prefill") for done in evidence.done)
    for outcome in evidence.outcomes:
        waited = outcome.ended_s - max(outcome.sent_s, fault_s)
        if outcome.fate == "no answer":
            yield Failure("NO_ANSWER", f"{name_of(outcome)}: nothing in {waited:.1f} s")
        elif outcome.fate == "cut off" and not killed:
            yield Failure("CUT_OFF", f"{name_of(outcome)}: {outcome.status} {outcome.error[:300]}")
        elif waited > evidence.limit_s:
            yield Failure("LATE_ANSWER", f"{name_of(outcome)}: {waited:.1f} s, and the bound is {evidence.limit_s:.1f}")


def not_spared(evidence: Evidence) -> Iterator[Failure]:
    """A request that failed in an episode that gives no request a reason to."""
    if not evidence.episode.spares:
        return
    for outcome in evidence.outcomes:
        if outcome.fate not in ("answered", "went away") and not outcome.asked.holds:
            yield Failure("NOT_SPARED", f"{name_of(outcome)}: {outcome.status} {outcome.error[:300]}")


def overstayed(loads: Sequence[Load], timeout_s: float) -> Iterator[Failure]:
    """A request that was inflight beyond the deadline and 2 s; the oldest such moment."""
    ages = [float(load.dsv4["oldest_age_s"]) for load in loads if load.dsv4 is not None]
    if ages and max(ages) > timeout_s + POLL_S:
        yield Failure("OVERSTAYED", f"a request was inflight for {max(ages):.1f} s, and the timeout is {timeout_s:g} s")


def not_idle(evidence: Evidence) -> Iterator[Failure]:
    """What a worker still holds, or does not have back, when all is over."""
    for role, before in evidence.held_before.items():
        after = evidence.held_after[role]
        if after is None:
            yield Failure("CANNOT_LOOK", f"{role} did not say what it holds")
            continue
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                seconds = f"{evidence.settled_after_s:.0f} s later"
                yield Failure("NOT_IDLE", f"{role} {name}: {before.get(name)} before, {after.get(name)} {seconds}")


def failed_probes(probes: Sequence[Outcome]) -> Iterator[Failure]:
    """A request after the episode that did not succeed."""
    for outcome in probes:
        if outcome.fate != "answered":
            yield Failure("NOT_SERVING", f"{name_of(outcome)}: {outcome.fate} {outcome.status} {outcome.error[:300]}")


def stale(evidence: Evidence) -> Iterator[Failure]:
    """A figure of ours that was not true for longer than FRESH_S."""
    loads = [Said(load.told_s, load.told_s, load.ours) for load in evidence.loads if load.fresh]
    scrapes = [Said(scrape.asked_s, scrape.told_s, scrape.ours) for scrape in evidence.scrapes]
    for source, samples in (("/v1/loads", loads), ("/metrics", scrapes)):
        for since, until, said in untrue(samples, evidence.loads):
            if until - since >= FRESH_S:
                when = f"{since - evidence.began_s:.1f} to {until - evidence.began_s:.1f} s"
                yield Failure("STALE", f"{source} said {said:g} inflight from {when}, which was not so")


def age_frozen(loads: Sequence[Load]) -> Iterator[Failure]:
    """The oldest request was said to be of one and the same age for longer than FRESH_S, while prefill was not busy.

    A load that is published right behind a long batch still has the age of before it; the next ones do not.
    """
    same: list[Load] = []
    for load in loads:
        if load.dsv4 is None or not load.fresh:
            continue
        if same and same[-1].dsv4 is not None and _oldest(same[-1].dsv4) != _oldest(load.dsv4):
            same = []
        same.append(load)
        seconds = load.told_s - same[0].told_s
        if load.dsv4["oldest_age_s"] and len(same) >= STUCK_LOADS and seconds > FRESH_S:
            yield Failure(
                "AGE_FROZEN", f"the oldest request was {load.dsv4['oldest_age_s']:.1f} s old for {seconds:.1f} s"
            )
            return


def _oldest(dsv4: Mapping[str, object]) -> tuple[object, object]:
    return dsv4["oldest_rid_hash"], dsv4["oldest_age_s"]


@dataclass(frozen=True)
class Said:
    """A figure that was read at some moment from `from_s` to `to_s`; None: there was none."""

    from_s: float
    to_s: float
    figure: float | None


def untrue(samples: Sequence[Said], truth: Sequence[Load]) -> Iterator[tuple[float, float, float]]:
    """The stretches in which a figure stayed as it was and was not true: since, until, what it said.

    What was true near a sample is every figure from the least to the most that was counted then: between two counts
    a request may come and go. Where the counts are further apart than NEAR_S, prefill was busy, and nothing is known.
    """
    since: float | None = None
    figure = until = 0.0
    for said in samples:
        begin, end = said.from_s - NEAR_S, said.to_s + NEAR_S
        counted = [load for load in truth if load.fresh and begin <= load.told_s <= end]
        times = [begin, *(load.told_s for load in counted), end]
        near = [load.inflight for load in counted] if max(b - a for a, b in pairwise(times)) <= NEAR_S else []
        wrong = said.figure is not None and bool(near) and not min(near) <= said.figure <= max(near)
        if since is not None and (not wrong or said.figure != figure):
            yield since, until, figure
            since = None
        if wrong and since is None and said.figure is not None:
            since, figure = said.to_s, said.figure
        until = said.from_s
    if since is not None:
        yield since, until, figure


def held_unseen(evidence: Evidence, timeout_s: float) -> Iterator[Failure]:
    """A held canary that did not end as one should, or that the figures did not show while it was there."""
    for outcome in evidence.outcomes:
        if outcome.asked.holds and not (outcome.fate == "refused" and any(words in outcome.error for words in TOLD)):
            yield Failure("NOT_HELD", f"{name_of(outcome)}: {outcome.fate} {outcome.status} {outcome.error[:300]}")
    held = sum(1 for outcome in evidence.outcomes if outcome.asked.holds)
    seen = max((int(load.dsv4["held"]) for load in evidence.loads if load.dsv4 is not None), default=0)
    if held and not seen:
        yield Failure("HELD_UNSEEN", f"{held} canaries were held for up to {timeout_s:g} s, and /v1/loads showed none")


def name_of(outcome: Outcome) -> str:
    """A request in a message: its id, how it was asked, its size."""
    asked = outcome.asked
    stream = ", streamed" if asked.stream else ""
    return f"{asked.rid} ({asked.api}{stream}, {len(outcome.prompt.text)} tokens)"


def gauge_frozen_s(evidence: Evidence) -> float:
    """For how long on end SGLang's own gauge stayed at a figure that was not true, at the longest."""
    samples = [Said(scrape.asked_s, scrape.told_s, scrape.gauge) for scrape in evidence.scrapes]
    return max((until - since for since, until, _ in untrue(samples, evidence.loads)), default=0.0)


def pinned_for_s(loads: Sequence[Load]) -> float:
    """For how long on end prefill had something inflight, at the longest."""
    longest, since = 0.0, None
    for load in loads:
        if load.inflight == 0:
            since = None
        elif since is None:
            since = load.told_s
        else:
            longest = max(longest, load.told_s - since)
    return longest
