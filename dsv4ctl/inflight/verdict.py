"""What is said of a queue at a sample, and what it rests on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["idle", "flowing", "suspect", "pinned", "fired", "stale", "unreachable"]
"""`fired`: the watchdog has ended a request since the sample before, by its counter or its line in the log.

`stale`: the engine answers, and its scheduler has published nothing for a while. `unreachable`: it does not answer.
"""

# What deserves to be said first of many queues, the worst first.
ORDER: tuple[State, ...] = ("pinned", "fired", "stale", "unreachable", "suspect", "flowing", "idle")

Basis = Literal["seen", "followed", "chance", "unsure"]
"""How it is known. `seen`: the engine says so itself. `followed`: it follows from figures of the engine's that cannot
lie about it. `chance`: flow alone would look so with the probability that is given. `unsure`: it may be otherwise.
"""


@dataclass(frozen=True)
class Verdict:
    """One queue at one sample.

    `pinned`: how many requests are stuck, at least; `fired`: how many the watchdog has ended since the sample before.
    `oldest_s`: for how long the oldest has been inflight, at least; `request` names it where the source does. `again`:
    whether it is the request that was pinned before, None where nothing was or it cannot be told. `chance`: that flow
    alone looks so. `kept_out`: what may keep requests from coming to the queue, so that an empty one says little.
    `as_of_s`: how old the figures are that it rests on, 0 where the source does not say.
    """

    worker: str
    dp_rank: int
    at_s: float
    state: State
    basis: Basis
    evidence: tuple[str, ...] = ()
    count: int | None = None
    pinned: int = 0
    oldest_s: float | None = None
    request: str | None = None
    again: bool | None = None
    chance: float | None = None
    fired: int = 0
    kept_out: str = ""
    as_of_s: float = 0.0

    @property
    def queue(self) -> str:
        """The queue in words: the worker, and its rank where it has several."""
        return f"{self.worker}/dp{self.dp_rank}" if self.dp_rank else self.worker


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that deserves to be said first. At least one must be given."""
    return min(verdicts, key=lambda verdict: ORDER.index(verdict.state))
