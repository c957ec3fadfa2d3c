"""What a watch comes to: spans, pins and fires, how well it could see, and what it could not conclude."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dsv4ctl.inflight.readings import hash_of
from dsv4ctl.inflight.sample import REFRESH_S, Sample, Source
from dsv4ctl.inflight.spans import Span, Spans
from dsv4ctl.inflight.verdict import Verdict

Outcome = Literal["healthy", "pinned", "could not look", "inconclusive"]

_MINUTE_S = 60.0
_ROUND_TRIP_UNIT_S = 1e-4


@dataclass(frozen=True)
class Pin:
    """Samples in a row at which a queue was called pinned. `oldest_s`: for how long the request was inflight, at least.

    `request` names it where the source does: by a hash of its id, `rid`, which is known once the watchdog has ended it.
    `ended`: a later look no longer found it; `unseen`: no later look could.
    """

    queue: str
    began_s: float
    last_s: float
    oldest_s: float
    requests: int
    request: str | None
    basis: str
    ended: bool
    unseen: bool = False
    rid: str | None = None

    @property
    def named(self) -> str | None:
        """The request in words; None where the source does not name it."""
        return f"{self.request} ({self.rid})" if self.request and self.rid else self.request


@dataclass(frozen=True)
class Fire:
    """The watchdog ended requests: how many, which was the oldest, if that is known, and how old it was."""

    queue: str
    at_s: float
    request: str | None
    age_s: float | None
    requests: int = 1


@dataclass(frozen=True)
class Doubt:
    """What could not be concluded, and what would settle it."""

    queue: str
    what: str
    settled_by: str


@dataclass(frozen=True)
class Blind:
    """A queue that could not be seen at the end: whether its worker answered, and what is known of it."""

    queue: str
    answers: bool
    why: str


@dataclass(frozen=True)
class Report:
    """The whole watch. Times in seconds; `lost` are looks that were due and left out, `failed` those without an answer,
    `stale` those at figures that had stood still for too long.

    `dwell_s` are upper bounds of quantiles of the time in the queue, by their names, where the engine counts it; None
    beyond its last bucket. `spans` are the last of the `spans_seen`. `unlogged` are looks at which the log could not be
    followed, `unlogged_why` the last reason.
    """

    seconds: float
    looks: int
    failed: int
    lost: int
    round_trip_median_s: float | None
    round_trip_p99_s: float | None
    sources: tuple[Source, ...]
    spans: tuple[Span, ...]
    pins: tuple[Pin, ...]
    fires: tuple[Fire, ...]
    doubts: tuple[Doubt, ...]
    blind: tuple[Blind, ...]
    outcome: Outcome
    dwell_s: dict[str, float | None] = field(default_factory=dict)
    dwell_count: int = 0
    stale: int = 0
    unlogged: int = 0
    unlogged_why: str = ""
    spans_seen: int = 0


class Story:
    """Takes in samples and their verdicts as they come, and tells in the end what they come to."""

    def __init__(self) -> None:
        self._spans = Spans()
        self._last: dict[str, Verdict] = {}
        self._source: dict[str, Source] = {}
        self._pins: list[Pin] = []
        self._fires: list[Fire] = []
        self._round_trips: Counter[int] = Counter()
        self._left_moved: set[str] = set()
        self._seen_empty: set[str] = set()
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._looks = self._failed = self._stale = self._unlogged = 0
        self._unlogged_why = ""
        self._open_pin: dict[str, Pin] = {}

    def take(self, sample: Sample, verdicts: Sequence[Verdict]) -> None:
        """One sample of one worker, and the verdict on each of its queues."""
        self._began_s = sample.at_s if self._began_s is None else self._began_s
        self._ended_s = sample.at_s
        self._looks += 1
        if sample.failure:
            self._failed += 1
        else:
            self._round_trips[round(sample.round_trip_s / _ROUND_TRIP_UNIT_S)] += 1
        if sample.log_failure:
            self._unlogged += 1
            self._unlogged_why = sample.log_failure
        self._stale += any(verdict.state == "stale" for verdict in verdicts)
        sources = {queue.dp_rank: queue.source for queue in sample.queues}
        for verdict in verdicts:
            name = verdict.queue
            if verdict.dp_rank in sources:
                self._source[name] = sources[verdict.dp_rank]
            self._last[name] = verdict
            self._note(name, verdict)

    def _note(self, name: str, verdict: Verdict) -> None:
        if verdict.state in ("unreachable", "stale"):
            self._spans.interrupted(name)
        elif verdict.count is not None:
            self._spans.look(name, verdict.at_s, verdict.count)
            if not verdict.count:
                self._seen_empty.add(name)
        if verdict.state == "flowing" and verdict.basis in ("seen", "followed"):
            self._left_moved.add(name)
        if verdict.state == "fired":
            self._fires.append(Fire(name, verdict.at_s, verdict.request, verdict.oldest_s, verdict.fired))
        self._note_pin(name, verdict)

    def _note_pin(self, name: str, verdict: Verdict) -> None:
        open_pin = self._open_pin.get(name)
        if verdict.state != "pinned":
            if open_pin is not None and verdict.state not in ("unreachable", "stale"):
                fired = verdict.request if verdict.state == "fired" else None
                rid = fired if fired is not None and hash_of(fired) == open_pin.request else None
                self._pins.append(replace(self._open_pin.pop(name), ended=True, rid=rid))
            return
        oldest_s = verdict.oldest_s or 0.0
        if open_pin is not None and open_pin.request == verdict.request:
            self._open_pin[name] = replace(
                open_pin,
                last_s=verdict.at_s,
                oldest_s=max(open_pin.oldest_s, oldest_s),
                requests=max(open_pin.requests, verdict.pinned),
            )
            return
        if open_pin is not None:
            self._pins.append(replace(open_pin, ended=True))
        self._open_pin[name] = Pin(
            name, verdict.at_s, verdict.at_s, oldest_s, verdict.pinned, verdict.request, verdict.basis, ended=False
        )

    def end(self, *, lost: int = 0, dwell_s: dict[str, float | None] | None = None, dwell_count: int = 0) -> Report:
        """What it all comes to."""
        still = [
            replace(pin, unseen=self._last[name].state in ("unreachable", "stale"))
            for name, pin in self._open_pin.items()
        ]
        pins = tuple(sorted([*self._pins, *still], key=lambda pin: pin.began_s))
        doubts = tuple(doubt for name in self._last for doubt in self._doubts(name))
        blind = tuple(
            Blind(name, last.state == "stale", "; ".join(last.evidence))
            for name, last in self._last.items()
            if last.state in ("stale", "unreachable")
        )
        return Report(
            seconds=self._ended_s - (self._began_s or 0.0),
            looks=self._looks,
            failed=self._failed,
            lost=lost,
            round_trip_median_s=_quantile(self._round_trips, 0.5),
            round_trip_p99_s=_quantile(self._round_trips, 0.99),
            sources=tuple(dict.fromkeys(self._source.values())),
            spans=self._spans.all(),
            spans_seen=self._spans.number(),
            pins=pins,
            fires=tuple(self._fires),
            doubts=doubts,
            blind=blind,
            outcome=self._outcome(pins, doubts, blind),
            dwell_s=dwell_s or {},
            dwell_count=dwell_count,
            stale=self._stale,
            unlogged=self._unlogged,
            unlogged_why=self._unlogged_why,
        )

    def _outcome(self, pins: Sequence[Pin], doubts: Sequence[Doubt], blind: Sequence[Blind]) -> Outcome:
        if pins or self._fires:
            return "pinned"
        if not self._last or blind:
            return "could not look"
        return "inconclusive" if doubts else "healthy"

    def _doubts(self, name: str) -> list[Doubt]:
        last, source = self._last[name], self._source.get(name)
        if source in ("gauge", "log"):
            return self._doubts_of_old_counts(name, source)
        if last.state == "idle" and last.kept_out:
            what = f"the queue was empty in the end, and {last.kept_out}"
            return [Doubt(name, what, "`dsv4ctl probe`, which asks for an answer")]
        if last.state == "suspect":
            what = f"it looked suspect in the end: {'; '.join(last.evidence)}"
            return [Doubt(name, what, "watch on until it is pinned or gone: --until pinned")]
        if source == "loads" and name not in self._seen_empty and name not in self._left_moved:
            what = "the queue was never seen empty, and nothing was seen to leave it"
            settled_by = "a quieter moment, or the patched engine, which says how old its oldest request is"
            return [Doubt(name, what, settled_by)]
        return []

    def _doubts_of_old_counts(self, name: str, source: Source) -> list[Doubt]:
        spans = self._spans.number(name)
        refresh_s = REFRESH_S[source]
        frozen = (
            f"the {source} may be frozen: it is written with a batch, otherwise every {refresh_s:g} s at most, and not "
            "at all while anything is pinned; and it counts health checks"
        )
        settled_by = "/v1/loads of the engine, which is live: watch the stack itself instead of its gauge"
        if not spans:
            return [Doubt(name, f"never above 0, and {frozen}", settled_by)]
        longest_s = self._spans.longest_s(name)
        observed = (
            f"none observed for {_MINUTE_S:g} s" if longest_s < _MINUTE_S else f"the longest for {longest_s:.0f} s"
        )
        number = "at least one span" if spans == 1 else f"at least {_in_words(spans)} spans"
        return [Doubt(name, f"{number} with something inflight, {observed}; {frozen}", settled_by)]


def _in_words(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number] if number < len(words) else str(number)


def _quantile(counted: Counter[int], quantile: float) -> float | None:
    """The smallest of the counted times that at least this part of all does not exceed, in seconds; None of none."""
    wanted = max(1, math.ceil(quantile * counted.total()))
    for value in sorted(counted):
        wanted -= counted[value]
        if wanted <= 0:
            return value * _ROUND_TRIP_UNIT_S
    return None
