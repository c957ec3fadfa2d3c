"""Taking samples: one prefill worker and what its decode workers wait for, over connections that are kept."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import Dsv4Error
from dsv4ctl.inflight.freshness import Freshness
from dsv4ctl.inflight.lines import event_of
from dsv4ctl.inflight.pages import Answer, CannotSample, NoSuchPage, Pages
from dsv4ctl.inflight.readings import left_by_rank, left_of_loads, left_of_metrics, queue_of_load, queues_of_gauge
from dsv4ctl.inflight.sample import Decode, Event, Queue, Sample
from dsv4ctl.metrics.exposition import Exposition, Unreadable, parse_exposition
from dsv4ctl.metrics.loads import PATH, Load, parse_loads
from dsv4ctl.printable import printable

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import LogStream

# Rendering /metrics costs the engine a hundred milliseconds and more, /v1/loads a few.
METRICS_EVERY_S = 5.0
LINE_WITHIN_S = 0.5
"""What the log's follower may be behind the engine, when it is known that there is a line that names a request."""

LOADS_AGAIN_S = 10.0
"""After so long an engine that had no loads is asked for them again."""

LINES_WITHIN_S = 2.0
"""For so long at most a look reads lines that are there already."""

_FIRES_REMEMBERED = 4096


@dataclass
class DecodeLook:
    """One decode worker, asked again and again."""

    name: str
    pages: Pages
    clock: Callable[[], float] = time.monotonic
    answers: bool = True
    _fresh: dict[int, Freshness] = field(default_factory=dict)

    def look(self) -> Decode | None:
        """What it waits for and for how long it has been silent; None where it does not say. `answers` afterwards says
        whether it answered at all."""
        self.answers = False
        try:
            answer = self.pages.get(PATH)
            self.answers = True
            loads = _loads(answer)
        except CannotSample:
            return None
        waiting = [load for load in loads if load.expecting is not None]
        if not waiting:
            return None
        ages = [_age_s(self._fresh, load, self.clock(), answer) for load in waiting]
        known = [age_s for age_s in ages if age_s is not None]
        if len(known) < len(ages):
            return None
        for_room = sum(load.for_room or 0 for load in waiting)
        return Decode(sum(load.expecting or 0 for load in waiting), max(known), min(known), for_room)


@dataclass
class PrefillLook:
    """One prefill worker, asked again and again. Its log is followed where `open_log` opens one."""

    name: str
    pages: Pages
    began_s: float
    open_log: "Callable[[], LogStream] | None" = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    metrics: Exposition | None = None
    _metrics_s: float = float("-inf")
    _fresh: dict[int, Freshness] = field(default_factory=dict)
    _loads_again_s: float = float("-inf")
    _prefilled: dict[int, int] = field(default_factory=dict)
    _fires: int | None = None
    _starts: int = 0
    _last_batch: Event | None = None
    _log: "LogStream | None" = None
    _fired: deque[tuple[int, str | None, str | None]] = field(default_factory=lambda: deque(maxlen=_FIRES_REMEMBERED))

    def look(self) -> Sample:
        """One sample; one with a `failure` where the worker could not be looked at."""
        at_s = self.clock()
        try:
            queues, left, took_s = self._queues()
            # Afterwards: what has moved a counter has been logged by now.
            log_failure = ""
            try:
                events = self._events(self._has_fired(queues))
            except Dsv4Error as error:
                self.close()
                events, log_failure = (), printable(str(error))
        except CannotSample as error:
            return Sample(self.name, at_s - self.began_s, self.wall_clock(), failure=printable(str(error)))
        return Sample(
            worker=self.name,
            at_s=at_s - self.began_s,
            clock=self.wall_clock(),
            round_trip_s=took_s,
            queues=queues,
            left=left,
            events=events,
            started=str(self._starts),
            left_age_s=self._left_age_s(queues),
            log_failure=log_failure,
        )

    def _left_age_s(self, queues: Sequence[Queue]) -> float:
        """How long ago what has left was read: with the queue, or with the metrics, which are asked for less often."""
        read_with_them = self.metrics is None or any(queue.source == "dsv4" for queue in queues)
        return 0.0 if read_with_them else max(0.0, self.clock() - self._metrics_s)

    def _queues(self) -> tuple[tuple[Queue, ...], Mapping[str, float], float]:
        if self.clock() >= self._loads_again_s:
            try:
                answer = self.pages.get(PATH)
                loads = _loads(answer)
            except NoSuchPage:
                loads = ()
            self._notice_restart(loads)
            if loads:
                left = left_of_loads(loads) or self._left_of_metrics()
                if queues := self._of_loads(loads, answer):
                    return queues, left, answer.took_s
            # An older engine has none; one that starts has none yet.
            self._loads_again_s = self.clock() + LOADS_AGAIN_S
        return self._of_older_sources()

    def _left_of_metrics(self) -> Mapping[str, float]:
        self._scrape(every_s=METRICS_EVERY_S)
        return left_of_metrics(self.metrics) if self.metrics is not None else {}

    def _of_older_sources(self) -> tuple[tuple[Queue, ...], Mapping[str, float], float]:
        began_s = self.clock()
        self._scrape(every_s=0.0)
        took_s = self.clock() - began_s
        exposition = self.metrics
        if exposition is not None and (queues := queues_of_gauge(exposition)):
            return queues, left_of_metrics(exposition), took_s
        if self._last_batch is not None:
            return (Queue("log", 0, self._last_batch.count or 0),), {}, took_s
        # What it has not got now it may have when it is up.
        self._loads_again_s = float("-inf")
        raise CannotSample(
            f"{self.pages.url} says nothing of an inflight queue, in /v1/loads or in /metrics: is it prefill?"
        )

    def _of_loads(self, loads: Sequence[Load], answer: Answer) -> tuple[Queue, ...]:
        now_s = self.clock()
        found = []
        for load in loads:
            age_s = _age_s(self._fresh, load, now_s, answer)
            if (queue := queue_of_load(load, age_s)) is not None:
                found.append(queue)
        return self._with_left(found)

    def _with_left(self, queues: Sequence[Queue]) -> tuple[Queue, ...]:
        """Each with what has left it, where the metrics that were read last say so of a rank."""
        ranks = left_by_rank(self.metrics) if self.metrics is not None else {}
        return tuple(
            replace(queue, left=ranks[queue.dp_rank]) if queue.left is None and queue.dp_rank in ranks else queue
            for queue in queues
        )

    def _notice_restart(self, loads: Sequence[Load]) -> None:
        """A counter that only grows has fallen: another engine answers now."""
        prefilled = {load.dp_rank: load.prefilled_tokens for load in loads if load.prefilled_tokens is not None}
        # A rank that an answer leaves out says nothing.
        if any(tokens < self._prefilled.get(rank, 0) for rank, tokens in prefilled.items()):
            self._starts += 1
            self._fresh.clear()
            self._prefilled.clear()
        self._prefilled |= prefilled

    def _scrape(self, *, every_s: float) -> None:
        now_s = self.clock()
        if now_s - self._metrics_s < every_s:
            return
        self._metrics_s = now_s
        try:
            answer = self.pages.get("/metrics")
            self.metrics = parse_exposition(answer.body.decode(errors="replace"))
        except (CannotSample, Unreadable):
            # An engine without --enable-metrics; its counters are not known then.
            self.metrics = None

    def scrape_now(self) -> Exposition | None:
        """The worker's metrics as they are now, None where it has none."""
        self._scrape(every_s=0.0)
        return self.metrics

    def _has_fired(self, queues: Sequence[Queue]) -> bool:
        """Whether the watchdog's counter has risen since the look before."""
        before, self._fires = self._fires, sum(queue.fires or 0 for queue in queues)
        return before is not None and self._fires > before

    def _events(self, has_fired: bool) -> tuple[Event, ...]:
        """What the log has said since the look before; with the watchdog's line, when it has fired."""
        if self.open_log is None:
            return ()
        found: list[Event] = []
        if self._log is None:
            self._log = self.open_log()
        began_s = self.clock()
        end_s = began_s + (LINE_WITHIN_S if has_fired else 0.0)
        while self.clock() - began_s < LINES_WITHIN_S:
            line = self._log.readline(max(0.0, end_s - self.clock()))
            if line is None:
                break
            if (event := event_of(line)) is None:
                continue
            if event.kind == "fired":
                end_s = self.clock()
                one = (event.dp_rank, event.rid, event.room)
                if one in self._fired:
                    continue
                self._fired.append(one)
            found.append(event)
        batches = [event for event in found if event.kind == "batch"]
        if batches:
            self._last_batch = batches[-1]
        # One line for each batch, of which the last says how it is now.
        return tuple(event for event in found if event.kind != "batch" or event is batches[-1])

    def close(self) -> None:
        """End the follower of the log; the next look opens it anew."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _loads(answer: Answer) -> tuple[Load, ...]:
    try:
        return parse_loads(json.loads(answer.body))
    except (ValueError, RecursionError) as error:
        raise CannotSample(f"/v1/loads is not understood: {error}") from error


def _age_s(fresh: dict[int, Freshness], load: Load, now_s: float, answer: Answer) -> float | None:
    """How old a load is at most; None where it does not say of when it is."""
    if load.published_at is None:
        return None
    return fresh.setdefault(load.dp_rank, Freshness()).age_s(load.published_at, now_s, answer.served)
