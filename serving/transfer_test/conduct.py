"""The course of a test: every pair alone with every size, then all pairs at once, and a look at all memory after each.

A destination's memory is poison. What a write brings is looked at when its word comes, and made poison again; so a
write that lands later, or in another place, is found by the next look at everything.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from serving.transfer_test import pattern, wire
from serving.transfer_test.agent import DONE
from serving.transfer_test.memory import CPU
from serving.transfer_test.peers import Broken, Peer, Peers
from serving.transfer_test.rank import UNKNOWN
from serving.transfer_test.report import Problem, Report, Round, Single, size_words

_OPEN_WITHIN_S: Final = 60.0
_FIRST_WITHIN_S: Final = 60.0
"""The first write of a pair connects: 38 s have been seen (sgl-project/sglang issue 28737)."""

_MEMORY_WITHIN_S: Final = 15.0
_SETTLE_S: Final = 0.5
_START_IN_S: Final = 0.02
_LONG_ENOUGH_S: Final = 1.0
"""A pair that has taken so long with one size is not asked for it again."""


@dataclass(frozen=True)
class Wanted:
    """How large, how often, how long. `size_bytes` is the buffer of each rank, and the largest write."""

    sizes: tuple[int, ...]
    size_bytes: int
    repeats: int = 3
    rounds: int = 3
    transfer_within_s: float = 10.0


class TimeOver(Exception):
    """The test has used up its time."""


@dataclass
class Conduct:
    """One test. `end` is a moment of the monotonic clock."""

    peers: Peers
    wanted: Wanted
    report: Report
    end: float
    windows: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """When each source met each destination and first wrote to it, in Unix time: what its log is read by."""

    _opened: dict[Peer, wire.Message] = field(default_factory=dict)
    _sequence: int = 0
    _bad: set[tuple[int, int]] = field(default_factory=set)

    def run(self) -> None:
        """All of it. What goes wrong is in the report."""
        stages: tuple[tuple[str, Callable[[], None]], ...] = (
            ("all", self._open),
            ("each pair alone", self._singles),
            ("all pairs at once", self._concurrent),
        )
        for at, (_, stage) in enumerate(stages):
            try:
                stage()
            except (Broken, TimeOver) as error:
                if isinstance(error, Broken):
                    self.report.problems.append(problem_of(error))
                else:
                    self.report.untested.append(f"what was left when the time for the test was over: {error}")
                self.report.untested += [name for name, _ in stages[at + 1 :]]
                return

    def _left(self, doing: str, at_most_s: float) -> float:
        left = self.end - time.monotonic()
        if left < 1.0:
            raise TimeOver(doing)
        return min(at_most_s, left)

    def _open(self) -> None:
        doing = "starting its agent"
        peers = (*self.peers.destinations, *self.peers.sources)
        places = Counter(map(_memory_of, peers))
        tasks = {
            peer: {"do": "open", "bytes": self.wanted.size_bytes, "together": places[_memory_of(peer)]}
            for peer in peers
        }
        self._opened = self.peers.ask_all(tasks, self._left(doing, _OPEN_WITHIN_S), doing)
        self.report.backend = self._opened[peers[0]]["backend"]

    def _meet(self, source: Peer, destination: Peer) -> None:
        doing = f"meeting {destination.who}"
        opened = self._opened[destination]
        words = {name: opened[name] for name in ("metadata", "pointer", "kind", "device")}
        task = {"do": "meet", "peer": str(destination.who), **words}
        answer = self.peers.ask(source, task, self._left(doing, _FIRST_WITHIN_S), doing)
        self.windows.setdefault(source.who.rank, {})[destination.who.rank] = (answer["began"], answer["ended"])

    def _singles(self) -> None:
        for source in self.peers.sources:
            for destination in self.peers.destinations:
                pair = (source.who.rank, destination.who.rank)
                with self._pair_may_fail(pair):
                    began = time.monotonic()
                    self._meet(source, destination)
                    self._single(source, destination, self.wanted.sizes[0], within_s=_FIRST_WITHIN_S)
                    met, _ = self.windows[pair[0]][pair[1]]
                    self.windows[pair[0]][pair[1]] = (met, time.time())
                    self.report.first[pair] = time.monotonic() - began
                    for size in self.wanted.sizes:
                        self._repeat(source, destination, size)
            self._sweep(self.peers.destinations, f"every write of {source.who}")

    @contextmanager
    def _pair_may_fail(self, pair: tuple[int, int]) -> Iterator[None]:
        try:
            yield
        except _PairFailed:
            self._bad.add(pair)
            self.report.untested.append(f"what was left of rank {pair[0]} to rank {pair[1]}")

    def _repeat(self, source: Peer, destination: Peer, size: int) -> None:
        seconds: list[float] = []
        while len(seconds) < self.wanted.repeats and sum(seconds) < _LONG_ENOUGH_S:
            seconds.append(self._single(source, destination, size, within_s=self.wanted.transfer_within_s))
        self.report.singles.append(Single(source.who.rank, destination.who.rank, size, tuple(seconds)))
        # The next size is larger, and would hide what was put beside these.
        self._sweep((destination,), f"the writes of {size_words(size)} from {source.who}")

    def _single(self, source: Peer, destination: Peer, size: int, *, within_s: float) -> float:
        """One write, looked at. Returns the seconds from its post to its end."""
        doing = f"writing {size_words(size)} from {source.who} to {destination.who}"
        within_s = self._left(doing, within_s)
        # Not always in the same place.
        offset = (self.wanted.size_bytes - size) // 2 // pattern.WORD * pattern.WORD
        write = _Write(self._next(), source, destination, size, offset, offset)
        (began, ended), *_ = self._write([write], within_s, doing, at_once=True)
        return ended - began

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _write(
        self, writes: "Sequence[_Write]", within_s: float, doing: str, *, at_once: bool
    ) -> list[tuple[float, float]]:
        """Writes that begin at the same moment. Returns when each was posted and ended, on the sources' clock.

        Raises:
            _PairFailed: the only one failed. Of several, those that did are in the report.
        """
        sources = dict.fromkeys(write.source for write in writes)
        destinations = dict.fromkeys(write.destination for write in writes)
        fills = {peer: {"do": "fill", "slots": [w.local for w in writes if w.source == peer]} for peer in sources}
        self.peers.ask_all(fills, self._left(doing, _MEMORY_WITHIN_S), f"filling memory before {doing}")
        tasks: dict[Peer, dict[str, object]] = {
            peer: {
                "do": "expect",
                "arrivals": [w.arrival for w in writes if w.destination == peer],
                "within_s": within_s,
                "at_once": at_once,
            }
            for peer in destinations
        }
        at = time.monotonic() + _START_IN_S if len(sources) > 1 else None
        for peer in sources:
            posts = [w.post for w in writes if w.source == peer]
            tasks[peer] = {"do": "write", "writes": posts, "at": at, "within_s": within_s}
        answers = self.peers.ask_all(tasks, self._left(doing, within_s + _MEMORY_WITHIN_S), doing)
        times = []
        failed: set[str] = set()
        for peer in sources:
            mine = [w for w in writes if w.source == peer]
            for write, result in zip(mine, answers[peer]["writes"], strict=True):
                times.append((result["began"], result["ended"]))
                if result["state"] != DONE:
                    failed.add(write.word)
                    self._problem("failed", f"{write} failed: {result['state']}", write)
        for peer in destinations:
            self._judge(answers[peer], [w for w in writes if w.destination == peer], failed)
        if failed and len(writes) == 1:
            raise _PairFailed
        return times

    def _judge(self, answer: wire.Message, writes: "Sequence[_Write]", failed: set[str]) -> None:
        """What a destination says of its writes, into the report; those that it was never told of, into `failed`."""
        by_word = {write.word: write for write in writes}
        for word in answer["missing"]:
            if word not in failed:
                failed.add(word)
                self._problem("failed", f"{by_word[word]} ended, and its destination was never told", by_word[word])
        for found in answer["problems"]:
            write = by_word[found["word"]]
            late = "; 200 ms later it was all there: its end was told too early" if found["late"] else ""
            self._problem("corrupt", f"{write} arrived wrong: {found['what']}{late}", write)
        for word in answer["stray"]:
            to = writes[0].destination.who
            self.report.problems.append(Problem("corrupt", f"{to} was told of a write that it did not expect: {word}"))

    def _problem(self, kind: str, what: str, write: "_Write") -> None:
        source, destination = write.source.who.rank, write.destination.who.rank
        self.report.problems.append(Problem(kind, what, source, destination, write.size))

    def _sweep(self, peers: Sequence[Peer], after: str, *, after_s: float = 0.0) -> None:
        doing = "looking at all of its memory"
        tasks = {peer: {"do": "sweep", "after_s": after_s} for peer in peers}
        for peer, answer in self.peers.ask_all(tasks, self._left(doing, _MEMORY_WITHIN_S), doing).items():
            if answer["what"] is not None:
                what = f"{peer.who} after {after}: {answer['what']}"
                self.report.problems.append(Problem("corrupt", what, None, peer.who.rank))

    def _concurrent(self) -> None:
        sources, destinations = self.peers.sources, self.peers.destinations
        pairs = [(s, d) for s in sources for d in destinations if (s.who.rank, d.who.rank) not in self._bad]
        if len(pairs) < 2:
            if self._bad:
                self.report.untested.append("all pairs at once: fewer than two pairs can write")
            return
        slot = self.wanted.size_bytes // max(len(sources), len(destinations)) // pattern.WORD * pattern.WORD
        for number in range(self.wanted.rounds + 1):
            doing = f"writing {size_words(slot)} from each source to each destination at once"
            writes = [
                _Write(self._next(), s, d, slot, d.who.rank * slot, s.who.rank * slot)
                for s, d in pairs
            ]  # fmt: skip
            # The first is looked at while the others are on their way, which costs time, and so is not timed.
            within_s = self._left(doing, self.wanted.transfer_within_s)
            before = len(self.report.problems)
            times = self._write(writes, within_s, doing, at_once=number == 0)
            if len(self.report.problems) > before:
                break
            if number:
                seconds = max(ended for _, ended in times) - min(began for began, _ in times)
                self.report.rounds.append(Round(slot, len(writes), seconds))
        self._sweep(destinations, "all pairs wrote at once", after_s=_SETTLE_S)


def _memory_of(peer: Peer) -> tuple[str, ...]:
    """Whose memory a rank takes: the host's, or that of a GPU, whose index means another GPU on the other side."""
    return (peer.host, CPU) if peer.device == CPU else (peer.host, peer.who.side, peer.device)


class _PairFailed(Exception):
    """A write failed: this pair is not asked again."""


@dataclass(frozen=True)
class _Write:
    sequence: int
    source: Peer
    destination: Peer
    size: int
    offset: int
    remote_offset: int

    def __str__(self) -> str:
        return f"write {self.sequence}, {size_words(self.size)} from {self.source} to {self.destination},"

    @property
    def tag(self) -> int:
        return pattern.tag(self.source.who.rank, self.destination.who.rank, self.size, self.sequence)

    @property
    def word(self) -> str:
        return f"dsv4 write {self.sequence}"

    @property
    def local(self) -> tuple[int, int, int]:
        return self.offset, self.size, self.tag

    @property
    def post(self) -> dict[str, object]:
        return {
            "peer": str(self.destination.who),
            "offset": self.offset,
            "remote_offset": self.remote_offset,
            "size": self.size,
            "word": self.word,
        }

    @property
    def arrival(self) -> dict[str, object]:
        return {"word": self.word, "offset": self.remote_offset, "size": self.size, "tag": self.tag}


def problem_of(error: Broken) -> Problem:
    """The end of a test, as a problem of its report."""
    who = error.who
    source = who.rank if who is not None and who.side == "source" else None
    destination = who.rank if who is not None and who.side == "destination" else None
    return Problem("unknown" if error.meaning == UNKNOWN else "failed", str(error), source, destination)
