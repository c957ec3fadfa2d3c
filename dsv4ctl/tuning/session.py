"""One run of `dsv4ctl tune-timeout`: measure, bound, look at the chain, recommend."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.chain import read_chain
from dsv4ctl.doctor.timer_order import order_findings, unread_findings
from dsv4ctl.errors import ExitCode, Refused, UsageError
from dsv4ctl.live import age_text
from dsv4ctl.timers import Timer
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.recommend import MARGIN, Cost, NoRoom, Recommendation, cost_of, recommend
from dsv4ctl.tuning.recordings import joined, read_all
from dsv4ctl.tuning.strata import judged, largest_of, outruns
from dsv4ctl.tuning.strata_view import strata_as_data, unfounded_lines
from dsv4ctl.tuning.view import cost_lines, show, show_recommendation
from dsv4ctl.tuning.window import BLOCK_S, Measured, open_window

if TYPE_CHECKING:
    from pathlib import Path

    from dsv4ctl.console import Console
    from dsv4ctl.signals import Interrupts
    from dsv4ctl.targets import Target

WINDOW_S = 600.0
SHORTEST_WINDOW_S = 10.0

TOLD_EVERY = 12
"""Blocks between two lines of progress."""


@dataclass(frozen=True)
class Evidence:
    """What to look at: a window of so many seconds from now on, and what was recorded before."""

    window_s: float
    recordings: "Sequence[Path]" = ()


@dataclass(frozen=True)
class Looked:
    """What it came to: a recommendation, that there is no room for one, or None; and all of it for programs."""

    found: Recommendation | NoRoom | None
    document: dict[str, object]


def checked_window_s(asked_s: float | None, *, is_recorded: bool) -> float:
    """For how long to look, where so much was asked for; by default not at all if there are recordings.

    Raises:
        UsageError: it is too short to see anything, and what was recorded before is no help.
    """
    window_s = (0.0 if is_recorded else WINDOW_S) if asked_s is None else asked_s
    if window_s < SHORTEST_WINDOW_S and not (is_recorded and window_s == 0):
        raise UsageError(
            f"--window must be {SHORTEST_WINDOW_S:g} s or longer, not {window_s:g}",
            hint="0 is for recordings alone: name them with --from",
        )
    return window_s


def tune(console: "Console", target: "Target", interrupts: "Interrupts", evidence: Evidence) -> ExitCode:
    """Measure and say which timeout the evidence supports. Nothing is changed.

    Returns OK with a recommendation, INCONCLUSIVE where the evidence does not support any.

    Raises:
        UsageError: there is no prefill worker, or a recording is none of this stack's.
        CannotLook: a worker does not say what is needed.
        Refused: no timeout that the evidence supports has room in the chain of timers.
    """
    looked = look(console, target, interrupts, evidence)
    found = with_room(console, looked)
    if found is None:
        return ExitCode.INCONCLUSIVE
    console.result(looked.document)
    return ExitCode.OK


def with_room(console: "Console", looked: Looked) -> Recommendation | None:
    """The recommendation; None where the evidence does not support any, which programs are told then.

    Raises:
        Refused: it has no room in the chain of timers.
    """
    if isinstance(looked.found, NoRoom):
        error = Refused(
            f"no inflight timeout has room: {looked.found.seconds:g} s is what the evidence asks for",
            why="; ".join(map(str, looked.found.pairs)),
            hint="make the outer timer longer, in the profile, and restart with `dsv4ctl co-restart`",
        )
        console.result(looked.document, error)
        raise error
    if looked.found is None:
        console.result(looked.document)
    return looked.found


def look(console: "Console", target: "Target", interrupts: "Interrupts", evidence: Evidence) -> Looked:
    """Measure, and show the evidence and what it recommends.

    Raises:
        UsageError: there is no prefill worker, or a recording is none of this stack's.
        CannotLook: a worker does not say what is needed.
    """
    measured = _measure(console, target, interrupts, evidence)
    chain = read_chain(target)
    timers = in_force(chain.timers, measured)
    bound = bound_of(measured.history)
    for finding in (*order_findings(timers), *unread_findings(chain.unread)):
        console.finding(finding)
    if not console.machine:
        show(console, measured, bound, timers)
    if isinstance(bound, NoBound):
        return Looked(None, as_data(measured, bound, timers, None))
    strata = judged(measured.strata)
    largest = largest_of(bound, strata)
    found = recommend(measured.history, bound, timers, largest)
    now_s = {seconds for seconds in measured.in_force_s.values() if seconds}
    costs = [cost_of(seconds, measured.history, bound) for seconds in sorted(now_s)]
    if not console.machine:
        for cost in costs:
            for line in cost_lines(cost, measured):
                console.data(f"now: {line}")
    if isinstance(found, NoRoom):
        return Looked(found, as_data(measured, bound, timers, None))
    if unfounded := [one for one in strata if outruns(one, largest.bound, found.cost.seconds, MARGIN)]:
        if not console.machine:
            for line in unfounded_lines(unfounded, found.cost.seconds, largest.bound):
                console.data(f"no recommendation: {line}")
        names = [one.stratum.name for one in unfounded]
        return Looked(None, as_data(measured, bound, timers, None, costs) | {"unfounded": names})
    if not console.machine:
        show_recommendation(console, found, measured)
    return Looked(found, as_data(measured, bound, timers, found.cost, costs))


def _measure(console: "Console", target: "Target", interrupts: "Interrupts", evidence: Evidence) -> Measured:
    blocks = 0
    recorded = read_all(evidence.recordings, target.name)

    def told(history: History) -> None:
        nonlocal blocks
        blocks += 1
        if blocks % TOLD_EVERY == 0:
            left_s = evidence.window_s - blocks * BLOCK_S
            console.say(f"{history.requests} requests so far, {age_text(max(0.0, left_s))} to go")

    with open_window(target) as window:
        if evidence.window_s:
            console.say(f"looking at the inflight queue for {age_text(evidence.window_s)}")
        measured = window.measure(evidence.window_s, sleep=interrupts.sleep, told=told)
    return replace(measured, history=joined(recorded, measured.history, BLOCK_S), recordings=recorded)


def in_force(timers: Sequence[Timer], measured: Measured) -> tuple[Timer, ...]:
    """The chain with the timeouts that the engines say, which may have been changed since they were started."""
    told = measured.in_force_s
    return tuple(
        replace(timer, seconds=told[timer.worker] or None, is_default=False, source="engine")
        if timer.letter == "T" and timer.worker in told
        else timer
        for timer in timers
    )


def as_data(
    measured: Measured, bound: Bound | NoBound, timers: Sequence[Timer], cost: Cost | None, now: Sequence[Cost] = ()
) -> dict[str, object]:
    """For programs: everything that the recommendation was computed from."""
    history = measured.history
    return {
        "window_s": round(history.seconds, 3),
        "requests": history.requests,
        "ended_early": history.ended,
        "buckets": [
            {"up_to_s": edge, "requests": sum(block.counts[at] for block in history.blocks)}
            for at, edge in [*enumerate(history.edges), (len(history.edges), None)]
        ],
        "restarts": measured.restarts,
        "decode_waiting": {"looks": measured.looks, "with_requests_waiting": measured.waiting},
        "bound": asdict(bound) if isinstance(bound, Bound) else None,
        "why_no_bound": asdict(bound) if isinstance(bound, NoBound) else None,
        "recordings": [
            {"file": str(one.path), "requests": one.requests, "seconds": one.seconds, "apart_s": one.apart_s}
            for one in measured.recordings
        ],
        **strata_as_data(measured, bound),
        "timers": [asdict(timer) for timer in timers],
        "in_force": [asdict(one) for one in now],
        "recommended": None if cost is None else asdict(cost),
    }
