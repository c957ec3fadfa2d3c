"""How short a timeout may be for the minute in which the watchdog is to be seen firing."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4ctl.errors import Refused
from dsv4ctl.timers import Timer, broken
from dsv4ctl.tuning.binomial import needed
from dsv4ctl.tuning.bound import CONFIDENCE
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.recommend import MARGIN, STEPS_S, of_timeout, with_timeout

DEFAULT_S = 30.0
SHORTEST_S = 5.0
"""A pass of the scheduler may take a second or two: a canary must be seen in the queue before it is ended."""

_ENOUGH = needed(0.99, CONFIDENCE)


@dataclass(frozen=True)
class Short:
    """The timeout to verify with, and why it is that."""

    seconds: float
    why: str


def short_timeout(history: History, timers: Sequence[Timer], in_force_s: float, asked_s: float | None) -> Short:
    """What to verify with: `asked_s`; or what is in force where that is no longer than 30 s; or 30 s, or less if the
    requests since the start allow.

    Raises:
        Refused: requests have stayed longer than that, or it stands wrong in the chain of timers.
    """
    if asked_s is not None and 0 < in_force_s < asked_s:
        raise Refused(
            f"{asked_s:g} s are longer than the {in_force_s:g} s in force",
            hint="leave --verify-with out to verify those",
        )
    short = Short(asked_s, "as you said") if asked_s is not None else _chosen(history, timers, in_force_s)
    if pairs := of_timeout(broken(with_timeout(timers, short.seconds))):
        raise Refused(
            f"a timeout of {short.seconds:g} s breaks the chain of timers",
            why="; ".join(map(str, pairs)),
            hint="`--verify-with SECONDS` takes another, between these two",
        )
    if short.seconds != in_force_s and asked_s is None and (longer := history.longer_than(short.seconds)):
        raise Refused(
            f"a timeout of {short.seconds:g} s could end good requests while it is verified",
            why=f"{longer} of {history.requests} requests since the start stayed longer, or were ended early",
            hint="`--verify-with SECONDS` takes another, and takes your word for it",
        )
    return short


def _chosen(history: History, timers: Sequence[Timer], in_force_s: float) -> Short:
    if 0 < in_force_s <= DEFAULT_S:
        return Short(in_force_s, "it is in force, so nothing is changed")
    longest = _longest(history)
    if longest is None or history.requests < _ENOUGH:
        return Short(DEFAULT_S, f"{history.requests} requests since the start are too few to go below that")
    heartbeats = [timer.seconds for timer in timers if timer.letter == "H" and timer.seconds is not None]
    least = max(MARGIN * longest, SHORTEST_S)
    seconds = next((step for step in STEPS_S if step >= least and all(step > beat for beat in heartbeats)), DEFAULT_S)
    if seconds >= DEFAULT_S:
        return Short(DEFAULT_S, "the requests since the start do not allow less")
    return Short(seconds, f"none of {history.requests} requests since the start stayed longer than {longest:g} s")


def _longest(history: History) -> float | None:
    """The edge that none stayed beyond; None where some were ended early, or stayed beyond all edges."""
    return next((edge for at, edge in enumerate(history.edges) if not sum(history.above(at))), None)
