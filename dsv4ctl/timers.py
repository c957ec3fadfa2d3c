"""The timers that bound a client's wait, and the order in which they have to stand (docs/timeouts.md).

A timer that ends a request must leave the one within it time to end it first, for a better reason: otherwise the
client hears of a timeout of the router's, and nobody of the transfer that was stuck.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dsv4ctl.stack import Worker

INFLIGHT_TIMEOUT = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
"""The variable of the one timer that can be changed on a running engine."""

TICK_S = 2.0
"""How much later than its deadline the watchdog answers, at most (docs/inflight.md), beside a forward pass."""

_ANSWER_S = 3.0
"""What an end takes to reach the client: from the half that ends to the other, and through the router."""

# Defaults: ours (serving/settings.py), SGLang 0.5.23 (environ.py), sglang-router 0.3.2 (--help).
_T = (INFLIGHT_TIMEOUT, 120.0)
_S = ("SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT", 120.0)
_B = ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", 300.0)
_W = ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", 300.0)
_H = ("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", 5.0)
_H_TIMES = ("SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", 2.0)
_R = ("--request-timeout-secs", 1800.0)
_A = ("--retry-max-retries", 5.0)
_SHORTEST_HEARTBEAT_S = 2.0


Source = Literal["engine", "process", "plan"]


@dataclass(frozen=True)
class Timer:
    """One timer of one worker. `seconds` is None where it is switched off; `set_by` names the variable or flag.

    `is_default`: nothing sets it, and the value is that of the version which this was written for. `source`: whether
    it is what the engine tells, what its process was started with, or what is planned.
    """

    letter: str
    what: str
    worker: str
    set_by: str
    seconds: float | None
    is_default: bool
    source: Source = "plan"

    def __str__(self) -> str:
        value = "off" if self.seconds is None else f"{self.seconds:g} s"
        return f"{self.what} of {self.worker} ({self.set_by}) is {value}{', the default' if self.is_default else ''}"


@dataclass(frozen=True)
class Broken:
    """Two timers in the wrong order: `inner` has to end a request before `outer` does, and does not."""

    inner: Timer
    outer: Timer
    why: str

    def __str__(self) -> str:
        return f"{self.inner}, and {self.outer}: {self.why}"


def timers_of(name: str, role: str, env: Mapping[str, str], argv: Sequence[str]) -> tuple[Timer, ...]:
    """The timers of one worker, by its environment and command line as planned, or as read back.

    Raises:
        ValueError: a value is no number.
    """
    if role == "prefill":
        return (
            _of_env("T", "the inflight timeout", name, env, _T, zero_is_off=True),
            _of_env("S", "the stall timeout", name, env, _S, zero_is_off=True),
            _of_env("B", "the bootstrap timeout", name, env, _B),
        )
    if role == "decode":
        return (
            _of_env("S", "the stall timeout", name, env, _S, zero_is_off=True),
            _of_env("W", "the waiting timeout", name, env, _W),
            _heartbeat(name, env),
        )
    if role == "router":
        attempts = _A[1] if (given := _flag(argv, _A)) is None else given
        request = _flag(argv, _R)
        once = attempts <= 1 or "--disable-retries" in argv
        what = "the request timeout" if once else f"the request timeout of each of {attempts:g} attempts"
        return (Timer("R", what, name, _R[0], _R[1] if request is None else request, request is None),)
    return ()


def timers_of_plan(workers: "Sequence[Worker]") -> tuple[Timer, ...]:
    """The timers of all planned workers.

    Raises:
        ValueError
    """
    return tuple(timer for worker in workers for timer in timers_of(worker.name, worker.role, worker.env, worker.argv))


def broken(timers: Sequence[Timer], *, client_s: float | None = None) -> tuple[Broken, ...]:
    """Each pair that stands in the wrong order; none when the chain is whole.

    H < T + tick < W <= B < R < the client's own patience, and S before R too. W and B may be equal, as SGLang has
    them: they count in different halves, and whichever ends first tells the other. `client_s` is left out where it is
    unknown.
    """
    found = [pair for pair in _pairs(timers) if not _holds(*pair)]
    if client_s is not None:
        client = Timer("C", "the patience", "the client", "what you said", client_s, is_default=False)
        found += [
            (router, client, 0.0, "the client leaves before it is told why")
            for router in _all(timers, "R")
            if not _holds(router, client, 0.0, "")
        ]
    return tuple(Broken(inner, outer, why) for inner, outer, _, why in found)


_Pair = tuple[Timer, Timer, float, str]


def _pairs(timers: Sequence[Timer]) -> Iterator[_Pair]:
    ordered = (
        ("H", "T", 0.0, "a transfer is ended as stuck before its other half is known to be gone"),
        ("T", "W", TICK_S, "decode gives up before the watchdog says what was stuck"),
        ("W", "B", 0.0, "prefill gives a request up that decode still waits for"),
        ("B", "R", _ANSWER_S, "the router ends a request that only waits for its turn"),
        ("W", "R", _ANSWER_S, "the router ends a request before decode says what it waited for"),
        ("S", "R", _ANSWER_S, "the router ends a request before anybody says that a scheduler stands still"),
    )
    for inner, outer, margin_s, why in ordered:
        for first in _all(timers, inner):
            for second in _all(timers, outer):
                yield first, second, margin_s, why


def _all(timers: Sequence[Timer], letter: str) -> list[Timer]:
    return [timer for timer in timers if timer.letter == letter]


def _holds(inner: Timer, outer: Timer, margin_s: float, _: str) -> bool:
    if outer.seconds is None:
        # What never ends anything is in nobody's way.
        return True
    if inner.seconds is None:
        return False
    may_be_equal = (inner.letter, outer.letter) == ("W", "B")
    return inner.seconds + margin_s < outer.seconds or (may_be_equal and inner.seconds == outer.seconds)


def _of_env(
    letter: str, what: str, worker: str, env: Mapping[str, str], known: tuple[str, float], *, zero_is_off: bool = False
) -> Timer:
    variable, default_s = known
    text = env.get(variable)
    seconds = default_s if text is None else _number(variable, text)
    return Timer(letter, what, worker, variable, None if zero_is_off and not seconds else seconds, text is None)


def _heartbeat(worker: str, env: Mapping[str, str]) -> Timer:
    interval, times = (env.get(name) for name, _ in (_H, _H_TIMES))
    interval_s = max(_SHORTEST_HEARTBEAT_S, _H[1] if interval is None else _number(_H[0], interval))
    failures = _H_TIMES[1] if times is None else _number(_H_TIMES[0], times)
    set_by = f"{_H[0]} x {_H_TIMES[0]}"
    return Timer("H", "the heartbeat", worker, set_by, interval_s * failures, interval is None and times is None)


def _flag(argv: Sequence[str], known: tuple[str, float]) -> float | None:
    name = known[0]
    value: str | None = None
    for at, word in enumerate(argv):
        if word == name and at + 1 < len(argv):
            value = argv[at + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return None if value is None else _number(name, value)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}, which is no number") from error
