"""One run of `dsv4ctl tune-timeout`: measure, bound, look at the chain, recommend."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.chain import read_chain
from dsv4ctl.doctor.timer_order import order_findings, unread_findings
from dsv4ctl.errors import ExitCode, Refused
from dsv4ctl.live import age_text
from dsv4ctl.timers import Timer
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.recommend import Cost, NoRoom, Recommendation, cost_of, recommend
from dsv4ctl.tuning.view import cost_lines, show, show_recommendation
from dsv4ctl.tuning.window import BLOCK_S, Measured, open_window

if TYPE_CHECKING:
    from dsv4ctl.console import Console
    from dsv4ctl.signals import Interrupts
    from dsv4ctl.targets import Target

TOLD_EVERY = 12
"""Blocks between two lines of progress."""


@dataclass(frozen=True)
class Looked:
    """What a window came to: a recommendation, that there is no room for one, or None; and all of it for programs."""

    found: Recommendation | NoRoom | None
    document: dict[str, object]


def tune(console: "Console", target: "Target", interrupts: "Interrupts", *, window_s: float) -> ExitCode:
    """Measure for so long and say which timeout the evidence supports. Nothing is changed.

    Returns OK with a recommendation, INCONCLUSIVE where the evidence does not support any.

    Raises:
        UsageError: there is no prefill worker.
        CannotLook: a worker does not say what is needed.
        Refused: no timeout that the evidence supports has room in the chain of timers.
    """
    looked = look(console, target, interrupts, window_s=window_s)
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


def look(console: "Console", target: "Target", interrupts: "Interrupts", *, window_s: float) -> Looked:
    """Measure for so long, and show the evidence and what it recommends.

    Raises:
        UsageError: there is no prefill worker.
        CannotLook: a worker does not say what is needed.
    """
    blocks = 0

    def told(history: History) -> None:
        nonlocal blocks
        blocks += 1
        if blocks % TOLD_EVERY == 0:
            left_s = window_s - blocks * BLOCK_S
            console.say(f"{history.requests} requests so far, {age_text(max(0.0, left_s))} to go")

    with open_window(target) as window:
        console.say(f"looking at the inflight queue for {age_text(window_s)}")
        measured = window.measure(window_s, sleep=interrupts.sleep, told=told)
    chain = read_chain(target)
    timers = in_force(chain.timers, measured)
    bound = bound_of(measured.history)
    for finding in (*order_findings(timers), *unread_findings(chain.unread)):
        console.finding(finding)
    if not console.machine:
        show(console, measured, bound, timers)
    if isinstance(bound, NoBound):
        return Looked(None, as_data(measured, bound, timers, None))
    found = recommend(measured.history, bound, timers)
    now_s = {seconds for seconds in measured.in_force_s.values() if seconds}
    costs = [cost_of(seconds, measured.history, bound) for seconds in sorted(now_s)]
    if not console.machine:
        for cost in costs:
            for line in cost_lines(cost, measured):
                console.data(f"now: {line}")
    if isinstance(found, NoRoom):
        return Looked(found, as_data(measured, bound, timers, None))
    if not console.machine:
        show_recommendation(console, found, measured)
    return Looked(found, as_data(measured, bound, timers, found.cost, costs))


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
        "timers": [asdict(timer) for timer in timers],
        "in_force": [asdict(one) for one in now],
        "recommended": None if cost is None else asdict(cost),
    }
