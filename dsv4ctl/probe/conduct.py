"""Putting the questions: single generations at every hop, then conversations on kept and on fresh connections."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from dsv4ctl.errors import Interrupted
from dsv4ctl.probe.hops import Caller, Hop
from dsv4ctl.probe.link import Ask
from dsv4ctl.probe.outcome import Exchange
from dsv4ctl.probe.questions import Conversation, Question, body_of
from dsv4ctl.probe.tally import LARGE, SMALL, Manner, tally

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Canary

ENOUGH_FAILURES = 3
"""After so many on one kind of connection a hop is asked no more on it: each may have taken the whole patience."""

CLEARING = 4
"""Conversations of two rounds with a hop that lies behind one that fails, to see whether it fails alike."""

_LOOK_EVERY_S = 0.05
_OF_ONE_SIZE = 3
"""So many of one size on either side of a hop tell that it fails on that size: chance does that once in 20 times."""


@dataclass(frozen=True)
class Questions:
    """What is asked; sizes in characters. `patience_s`: a request that brings nothing for so long hangs.

    A conversation grows by `grow` each round, up to the size of the large generation.
    """

    model: str
    small: int
    large: int
    grow: int
    patience_s: float
    rounds: int = 0
    concurrency: int = 1
    gaps_s: tuple[float, ...] = (0.0,)
    request: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def questions_of(model: str, canary: "Canary") -> Questions:
    """The single generations of a profile's canary."""
    return Questions(
        model=model,
        small=max(1, int(canary.small_tokens * canary.characters_per_token)),
        large=int(canary.large_tokens * canary.characters_per_token),
        grow=0,
        patience_s=canary.deadline_s,
        request=dict(canary.request),
    )


class Stop(Protocol):
    """The wish to end, as `signals.Interrupts` keeps it."""

    def check(self) -> None: ...

    def sleep(self, seconds: float) -> None: ...


class Record:
    """Everything that was asked so far. Safe to use from several threads; `tell` is called with each exchange."""

    def __init__(self, tell: Callable[[Exchange], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        with self._lock:
            self._exchanges.append(exchange)
            self._tell(exchange)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """A copy, in the order in which the answers came."""
        with self._lock:
            return tuple(self._exchanges)


def most_requests(questions: Questions, walked: int, conversed: int) -> int:
    """The most generations that a probe can come to: every failure is asked again, up to a limit."""
    walk = walked * 2 * 2 * 2
    rounds = conversed * 2 * questions.concurrency * questions.rounds
    again = conversed * (2 * (ENOUGH_FAILURES + questions.concurrency) * 2 + 4 * CLEARING) if questions.rounds else 0
    return walk + rounds + again


class Conduct:
    """Asks hops. `caller_of` opens one for a conversation."""

    def __init__(
        self,
        questions: Questions,
        caller_of: Callable[[Hop], Caller],
        record: Record,
        stop: Stop,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions = questions
        self._caller_of = caller_of
        self._record = record
        self._stop = stop
        self._rng = rng
        self._clock = clock

    def walk(self, hops: Sequence[Hop]) -> None:
        """A small and a large generation at every hop, from the engine outwards; each that fails once more.

        While a hop that failed is asked again, so are those behind it: whether they answer at that moment is what the
        verdict hangs on, for an engine may stand still for a minute and go on. Before one that always fails, a hop can
        only show that it suffers from it, and one question is enough for that.

        Raises:
            Interrupted: the person wants to end; what was asked is in the record.
        """
        for hop in sorted(hops, key=lambda hop: -hop.depth):
            behind = [other for other in hops if other.depth > hop.depth]
            if any(self._manner(other) is Manner.ALWAYS for other in behind):
                self._single(hop, SMALL)
                continue
            sound = [other for other in behind if other.depth == hop.depth + 1 and self._manner(other).sound]
            self._walk(hop, sound)
            for other in sound:
                self._as_large_or_small(hop, other)

    def _as_large_or_small(self, failing: Hop, behind: Hop) -> None:
        """Where a hop fails on one size, the hop behind it is asked as often for just that."""
        for manner, number in ((Manner.SMALL, SMALL), (Manner.LARGE, LARGE)):
            if self._manner(failing) is not manner:
                continue
            while True:
                seen = tally(behind.name, self._record.exchanges)
                asked = seen.small if number == SMALL else seen.large
                if asked.asked >= _OF_ONE_SIZE or not seen.manner.sound:
                    return
                self._single(behind, number)

    def _walk(self, hop: Hop, behind: Sequence[Hop] = ()) -> None:
        first = self._single(hop, SMALL)
        if not first.seen:
            return
        if not first.failed:
            if self._single(hop, LARGE).failed and self._beside(hop, [(LARGE, True)], behind)[0].failed:
                self._single(hop, LARGE, again=True)
            return
        _, *large = self._beside(hop, [(SMALL, True), (LARGE, False), (LARGE, True)], behind)
        if not any(exchange.failed for exchange in large):
            self._single(hop, SMALL, again=True)

    def _beside(self, hop: Hop, singles: Sequence[tuple[int, bool]], behind: Sequence[Hop]) -> list[Exchange]:
        """Further questions to a hop that has failed, of a size and asked again or not: all at once, since each may
        take the whole patience. Beside them the hops behind it are asked."""
        with ThreadPoolExecutor(len(singles) + len(behind)) as pool:
            again = [pool.submit(self._single, hop, number, again=twice) for number, twice in singles]
            others = [pool.submit(self._walk, other) for other in behind]
        for walked in others:
            walked.result()
        return [future.result() for future in again]

    def _single(self, hop: Hop, number: int, *, again: bool = False) -> Exchange:
        characters = self._questions.small if number == SMALL else self._questions.large
        question = Conversation(self._rng, grow=characters, limit=characters).ask()
        caller = self._caller_of(hop)
        try:
            return self._ask(hop, caller, question, _Place("walk", 0, kept=False, round=number), again=again)
        finally:
            caller.close()

    def converse(self, hops: Iterable[Hop]) -> None:
        """Conversations with these hops, on kept and on fresh connections side by side.

        Where a hop turns out to fail on kept ones, those behind it are asked once more in just the way in which it
        fails: whether they answer is what the verdict hangs on.

        Raises:
            Interrupted: the person wants to end; what was asked is in the record.
        """
        asked = self._questions
        gaps = [0.0, *(asked.gaps_s[at % len(asked.gaps_s)] for at in range(asked.rounds - 1))]
        hops = tuple(hops)
        self._converse(
            [
                _Talk(hop, number, tuple(gaps), kept=kept)
                for hop in hops
                for number in range(1, asked.concurrency + 1)
                for kept in (True, False)
            ]
        )
        self._converse(self._clearing(hops))
        self._alone(hops)

    def _alone(self, hops: Sequence[Hop]) -> None:
        """An innermost hop that failed now and then while all conversations went on is asked once more by itself."""
        deepest = max((hop.depth for hop in hops), default=0)
        for hop in hops:
            seen = tally(hop.name, self._record.exchanges)
            if hop.depth == deepest and seen.manner is Manner.SOMETIMES and seen.large.asked and not seen.large.failed:
                self._single(hop, LARGE)

    def talkative(self, hops: Iterable[Hop]) -> tuple[Hop, ...]:
        """Those of the hops that a conversation can be had with: they do not fail every time."""
        return tuple(hop for hop in hops if self._manner(hop) not in {Manner.ALWAYS, Manner.UNSEEN})

    def _clearing(self, hops: Sequence[Hop]) -> list["_Talk"]:
        talks: dict[Hop, _Talk] = {}
        for hop in hops:
            seen = tally(hop.name, self._record.exchanges)
            if seen.manner is not Manner.REUSED:
                continue
            gap_s = min(seen.failing_gaps, default=min(gap for gap, count in seen.reused_by_gap if count.failed))
            for behind in hops:
                if behind.depth == hop.depth + 1 and self._manner(behind) is Manner.ANSWERS:
                    talks.setdefault(behind, _Talk(behind, 0, (0.0, gap_s), kept=True))
        number = self._questions.concurrency
        return [replace(talk, number=number + each) for talk in talks.values() for each in range(1, CLEARING + 1)]

    def _converse(self, talks: Sequence["_Talk"]) -> None:
        if not talks:
            return
        with ThreadPoolExecutor(len(talks)) as pool:
            running = [pool.submit(self._conversation, talk) for talk in talks]
        interrupted: Interrupted | None = None
        for future in running:
            try:
                future.result()
            except Interrupted as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def _conversation(self, talk: "_Talk") -> None:
        asked, hop, kept = self._questions, talk.hop, talk.kept
        caller = self._caller_of(hop)
        rng = random.Random(self._rng.random())  # noqa: S311 (no secret)
        conversation = Conversation(rng, grow=asked.grow, limit=asked.large)
        gaps = [*talk.gaps_s]
        try:
            while gaps and not self._enough(hop, kept=kept):
                gap_s = gaps.pop(0)
                self._lie_idle(caller, gap_s)
                question = conversation.ask()
                place = _Place("rounds", talk.number, kept=kept, round=len(question.messages) // 2 + 1)
                exchange = self._ask(hop, caller, question, place, gap_s=gap_s)
                if exchange.failed:
                    # Once more at once, on another connection; and the same gap again, since once is no pattern.
                    caller.close()
                    exchange = self._ask(hop, caller, question, place, again=True)
                    if exchange.failed:
                        return
                    if place.round > 1:
                        gaps.insert(0, gap_s)
                conversation.hear(exchange.reply.text)
                if not kept:
                    caller.close()
        finally:
            caller.close()

    def _lie_idle(self, caller: Caller, gap_s: float) -> None:
        end = self._clock() + gap_s
        while (left := end - self._clock()) > 0:
            self._stop.sleep(min(_LOOK_EVERY_S, left))
            caller.look()

    def _ask(
        self, hop: Hop, caller: Caller, question: Question, place: "_Place", *, gap_s: float = 0.0, again: bool = False
    ) -> Exchange:
        self._stop.check()
        asked = self._questions
        body = body_of(asked.model, question.messages, asked.request, stream=True)
        answered = caller.ask(Ask(body, question.answer, asked.patience_s, asked.headers))
        exchange = Exchange(
            hop=hop.name,
            phase=place.phase,
            conversation=place.conversation,
            kept=place.kept,
            round=place.round,
            gap_s=gap_s,
            again=again,
            characters=question.characters,
            reply=answered.reply,
            prefill=answered.prefill,
        )
        self._record.add(exchange)
        return exchange

    def _failed(self, hop: Hop) -> list[Exchange]:
        return [exchange for exchange in self._record.exchanges if exchange.hop == hop.name and exchange.failed]

    def _enough(self, hop: Hop, *, kept: bool) -> bool:
        failed = [e for e in self._failed(hop) if e.phase == "rounds" and e.kept == kept and not e.again]
        return len(failed) >= ENOUGH_FAILURES

    def _manner(self, hop: Hop) -> Manner:
        return tally(hop.name, self._record.exchanges).manner


@dataclass(frozen=True)
class _Talk:
    """One conversation to have: the gap before each of its rounds."""

    hop: Hop
    number: int
    gaps_s: tuple[float, ...]
    kept: bool


@dataclass(frozen=True)
class _Place:
    """Where in the probe a question stands."""

    phase: str
    conversation: int
    kept: bool
    round: int
