"""What became of one request, as values: the outcome in one word, the times, and what the other side of TCP did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """One word for what a request came to. Everything but RIGHT and UNSEEN is a failure."""

    RIGHT = "right"
    WRONG = "wrong answer"
    EMPTY = "empty answer"
    REPEATS = "repeats itself"
    ERROR_IN_200 = "error in a 200"
    STATUS = "HTTP error"
    NO_COMPLETION = "no completion"
    ENDED_EARLY = "ended early"
    HANGS = "hangs"
    ENDLESS = "does not end"
    CLOSED = "closed"
    RESET = "reset"
    CUT = "cut off"
    NO_CONNECTION = "no connection"
    UNSEEN = "could not look"

    @property
    def failed(self) -> bool:
        """Whether it is a failure of the hop. What could not be looked at is none."""
        return self not in {Outcome.RIGHT, Outcome.UNSEEN}


CONTENT = frozenset({Outcome.WRONG, Outcome.EMPTY, Outcome.REPEATS})
"""An answer came, whole, and it is not the right one."""

CONNECTION = frozenset({Outcome.CLOSED, Outcome.RESET, Outcome.CUT, Outcome.ENDED_EARLY})
"""The answer did not come, or not to its end, and the connection or the stream ended."""

ERRORS = frozenset({Outcome.ERROR_IN_200, Outcome.STATUS, Outcome.NO_COMPLETION, Outcome.NO_CONNECTION})
"""The hop said that it failed, or did not take the connection."""


class Act(StrEnum):
    """What the other side of the TCP connection did last, as far as our socket saw it."""

    ANSWERED = "answered"
    CLOSED = "closed"
    RESET = "reset"
    SILENT = "silent"
    NONE = "not connected"


HANGING = frozenset({Outcome.HANGS, Outcome.ENDLESS})
"""No answer came to its end in time."""


@dataclass(frozen=True)
class Peer:
    """The other side of the connection.

    Attributes:
        act: what it did last.
        received_bytes: how much of the response had come by then.
        acknowledged: whether its TCP took all of a request that it did not answer; None where that cannot be seen.
        idle_close_s: after how long it had closed the connection before this one, which lay idle; None: it had not.
        direct: whether the socket is ours. Through an SSH tunnel it is the host's, and a reset looks like a close.
    """

    act: Act
    received_bytes: int = 0
    acknowledged: bool | None = None
    idle_close_s: float | None = None
    direct: bool = True


@dataclass(frozen=True)
class Times:
    """Seconds since the request was begun; None: it did not come to that. `connect_s` is None on a kept connection."""

    connect_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    last_byte_s: float | None = None
    ended_s: float = 0.0


@dataclass(frozen=True)
class Reply:
    """What one request to one URL came to.

    Attributes:
        nth: which request on its connection it was; 1 is the first, 0 had no connection.
        text: the answer.
        engine_s: where SGLang says that the time went: `queue`, `prefill`, `after_prefill`, `total`.
    """

    outcome: Outcome
    detail: str
    times: Times
    peer: Peer
    nth: int = 0
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    engine_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One question put to one hop.

    Attributes:
        phase: `walk` for the two single generations, `rounds` for conversations.
        kept: this conversation keeps its connection from one round to the next.
        gap_s: for how long nothing was asked in this conversation before, as it was meant.
        again: asked again because the one before had failed.
        prefill: what prefill said, where the two halves were asked directly.
    """

    hop: str
    phase: str
    conversation: int
    kept: bool
    round: int
    gap_s: float
    again: bool
    characters: int
    reply: Reply
    prefill: Reply | None = None

    @property
    def failed(self) -> bool:
        """Whether the hop failed in it."""
        return self.reply.outcome.failed

    @property
    def seen(self) -> bool:
        """Whether it says anything about the hop."""
        return self.reply.outcome is not Outcome.UNSEEN

    @property
    def reused(self) -> bool:
        """Whether its connection had carried a request before."""
        return self.reply.nth > 1
