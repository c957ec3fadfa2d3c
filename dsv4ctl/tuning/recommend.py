"""From a bound to a timeout: how long to wait, what that costs when it is wrong, and what it costs when it is right."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4ctl.timers import TICK_S, Broken, Timer, broken
from dsv4ctl.tuning.binomial import share_at_most
from dsv4ctl.tuning.bound import Bound
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.strata import Largest

MARGIN = 3.0
"""So many times the bound, since that says nothing of the few beyond its quantile. A choice, and no measurement."""

STEPS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
"""What is recommended: a number that a person can remember, and recognise in a log."""

DAY_S = 86_400.0


@dataclass(frozen=True)
class Cost:
    """What a timeout costs. `longer` of the requests that were seen stayed longer, or may have; with the confidence of
    the bound that is a share of at most `share`, and at the rate of the window, `requests` in `of_s` seconds, so many
    false aborts a day."""

    seconds: float
    longer: int
    share: float
    per_day: float
    requests: int = 0
    of_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Requests a second."""
        return self.requests / self.of_s if self.of_s else 0.0


@dataclass(frozen=True)
class Recommendation:
    """`at_least` is why it is not shorter, `timers` the chain with this timeout in it."""

    cost: Cost
    at_least: tuple[str, ...]
    timers: tuple[Timer, ...]


@dataclass(frozen=True)
class NoRoom:
    """There is no such timeout between the timers that have to end a request before it and after it."""

    seconds: float
    pairs: tuple[Broken, ...]


def cost_of(seconds: float, history: History, bound: Bound) -> Cost:
    """What a timeout of so many seconds costs, by what was seen."""
    longer = history.longer_than(seconds)
    # Those beyond it come in clusters as well, so that as many are worth fewer.
    seen = -(-longer // max(1, int(bound.worth.effect))) if longer else 0
    share = share_at_most(seen, bound.samples, bound.confidence)
    per_day = share * history.requests / history.seconds * DAY_S
    return Cost(seconds, longer, share, per_day, history.requests, history.seconds)


def recommend(
    history: History, bound: Bound, timers: Sequence[Timer], largest: Largest | None = None
) -> Recommendation | NoRoom:
    """The shortest round timeout that is `MARGIN` times the largest bound, and that the heartbeat comes before.

    `bound` is the one of the whole, of which the costs are, and the largest where no other is named.
    """
    rests_on = largest or Largest(bound)
    wanted = [(MARGIN * rests_on.bound.seconds, f"{MARGIN:g} times {rests_on.words}")]
    wanted += [
        (timer.seconds, f"longer than {timer.what} of {timer.worker}, {timer.seconds:g} s")
        for timer in timers
        if timer.letter == "H" and timer.seconds is not None
    ]
    seconds = next(
        (step for step in STEPS_S if step >= wanted[0][0] and all(step > least for least, _ in wanted[1:])), STEPS_S[-1]
    )
    chain = with_timeout(timers, seconds)
    if pairs := of_timeout(broken(chain)):
        return NoRoom(seconds, pairs)
    return Recommendation(cost_of(seconds, history, bound), tuple(words for _, words in wanted), chain)


def with_timeout(timers: Sequence[Timer], seconds: float) -> tuple[Timer, ...]:
    """The chain with another inflight timeout in all of its prefill workers."""
    return tuple(
        Timer(timer.letter, timer.what, timer.worker, timer.set_by, seconds, is_default=False)
        if timer.letter == "T"
        else timer
        for timer in timers
    )


def of_timeout(pairs: Sequence[Broken]) -> tuple[Broken, ...]:
    """Those of the pairs that the inflight timeout is one of; the others were broken before."""
    return tuple(pair for pair in pairs if "T" in (pair.inner.letter, pair.outer.letter))


def held_by_a_pin(seconds: float, prompt_tokens: float, pool_tokens: float) -> tuple[float, float]:
    """(token-seconds, share of the pool) that one pinned request of so many tokens keeps from others, for the timeout
    and the watchdog's own delay."""
    return prompt_tokens * (seconds + TICK_S), min(1.0, prompt_tokens / pool_tokens)
