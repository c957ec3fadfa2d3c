"""A watch of a stack from its beginning to its end: who is asked, what is shown meanwhile, when it is over."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from dsv4ctl.console import Console, make_table
from dsv4ctl.engine_keys import keys_of
from dsv4ctl.errors import Interrupted, OperationFailed, UsageError
from dsv4ctl.inflight.collect import DecodeLook, PrefillLook
from dsv4ctl.inflight.judge import Judge, Limits
from dsv4ctl.inflight.pages import Pages
from dsv4ctl.inflight.readings import DWELL
from dsv4ctl.inflight.recording import Header, Recording, write_header, write_sample
from dsv4ctl.inflight.report import Report, Story
from dsv4ctl.inflight.sample import Sample
from dsv4ctl.inflight.verdict import Verdict
from dsv4ctl.inflight.view import COLUMNS, Board, line
from dsv4ctl.inflight.watching import Pace, watch
from dsv4ctl.live import Region

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place
    from dsv4ctl.hosts.base import LogStream
    from dsv4ctl.metrics.exposition import Histogram
    from dsv4ctl.state import WorkerRecord
    from dsv4ctl.targets import Target

Until = Literal["idle", "pinned", "fired"]
Taken = Callable[[Sample, Sequence[Verdict]], None]
"""What else is to be done with each sample and what is said of it."""

# An engine that has just come to a stop was idle a moment ago.
_IDLE_WITHIN_S = 3.0
_QUANTILES = {"half": 0.5, "90 %": 0.9, "99 %": 0.99}


@dataclass(frozen=True)
class Wanted:
    """How long to watch, how often, and what ends it early."""

    interval_s: float = 1.0
    duration_s: float | None = None
    count: int | None = None
    until: Until | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Seen:
    """A watch that is over. `came`: what `until` names has come. `interrupted`: the person ended it."""

    report: Report
    came: bool
    interrupted: Interrupted | None = None


@dataclass(frozen=True)
class Watched:
    """The workers of a stack that have to do with the inflight queue."""

    prefills: tuple[PrefillLook, ...]
    decodes: tuple[DecodeLook, ...]


@contextmanager
def open_looks(target: "Target", clock: Callable[[], float] = time.monotonic) -> Iterator[Watched]:
    """Connections to every prefill and decode worker of a stack; leaving closes them.

    Raises:
        UsageError: the stack has no prefill worker.
    """
    members = [(host, worker) for host, record in target.records for worker in record.workers]
    if not any(worker.role == "prefill" for _, worker in members):
        roles = ", ".join(sorted({worker.role for _, worker in members}))
        raise UsageError(
            f"{target.name} has no prefill worker, so it has no inflight queue",
            why=f"its workers are: {roles}",
            hint="name a stack with prefill and decode apart",
        )
    began_s = clock()
    with ExitStack() as exits:
        prefills, decodes = [], []
        for host, worker in members:
            place = target.fleet[host]
            if worker.role not in ("prefill", "decode"):
                continue
            keys = keys_of(place, worker, "--api-key")
            pages = Pages(f"http://{worker.listen}:{worker.port}", place.host.transport(), clock, keys)
            exits.callback(pages.close)
            if worker.role == "prefill":
                look = PrefillLook(worker.name, pages, began_s, _log_of(place, worker), clock)
                exits.callback(look.close)
                prefills.append(look)
            else:
                decodes.append(DecodeLook(worker.name, pages, clock))
        yield Watched(tuple(prefills), tuple(decodes))


def _log_of(place: "Place", worker: "WorkerRecord") -> "Callable[[], LogStream] | None":
    """How to follow a worker's log; None for one that we did not start, whose log we do not know."""
    if worker.handle is None:
        return None
    return lambda: place.host.follow(place.supervisor.log(worker.unit))


class Screen:
    """What is shown while it goes on: a live table at a terminal, a line for each verdict elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._board = Board()
        self._region = Region(console)

    def __enter__(self) -> Self:
        self._region.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._region.__exit__(*exc)

    def show(self, sample: Sample, verdicts: Sequence[Verdict]) -> None:
        """One sample and what is said of it."""
        self._board.take(sample, verdicts)
        self._console.event({"sample": sample, "verdicts": verdicts})
        if self._console.machine:
            return
        if self._region.is_live:
            self._region.draw(self._picture())
            return
        clock = datetime.fromtimestamp(sample.clock, UTC).strftime("%H:%M:%S")
        for verdict in verdicts:
            self._console.data(line(clock, verdict, sample))

    def _picture(self) -> Any:  # noqa: ANN401 - a rich renderable
        from rich.console import Group
        from rich.text import Text

        events = [Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in self._board.last_events()]
        evidence = [Text(text) for text in self._board.evidence()]
        return Group(make_table(COLUMNS, self._board.rows()), *evidence, *events)


def _nothing(_: Sample, __: Sequence[Verdict]) -> None:
    pass


def watch_stack(
    console: Console,
    target: "Target",
    wanted: Wanted,
    *,
    sleep: Callable[[float], None],
    record: Path | None,
    taken: Taken = _nothing,
) -> Seen:
    """Watch until it is over; `sleep` raises Interrupted when the person wants that.

    Raises:
        UsageError: there is nothing to watch.
        OperationFailed: the recording cannot be written.
    """
    judge, story = Judge(wanted.limits), Story()
    pace = Pace(wanted.interval_s)
    came = wanted.until is None
    interrupted: Interrupted | None = None
    with open_looks(target) as watched, _recorder(record, target.name, wanted) as keep, Screen(console) as screen:
        dwell = Dwell(watched.prefills)
        looks = watch(
            watched.prefills, watched.decodes, pace, sleep=sleep, duration_s=wanted.duration_s, count=wanted.count
        )
        try:
            for samples in looks:
                said: list[Verdict] = []
                for sample in samples:
                    keep(sample)
                    verdicts = judge.judge(sample)
                    story.take(sample, verdicts)
                    screen.show(sample, verdicts)
                    taken(sample, verdicts)
                    said += verdicts
                if has_come(wanted.until, said):
                    came = True
                    break
                if console.lost is not None:
                    # Nobody reads on. What was seen is in the exit code.
                    break
        except Interrupted as error:
            interrupted = error
        return Seen(dwell.report(story, pace.lost), came, interrupted)


def has_come(until: Until | None, verdicts: Sequence[Verdict]) -> bool:
    """Whether these verdicts of one look are what the watch waits for: idle is all of them, the others any."""
    if until is None:
        return False
    if until == "idle":
        return bool(verdicts) and all(v.state == "idle" and v.as_of_s <= _IDLE_WITHIN_S for v in verdicts)
    return any(verdict.state == until for verdict in verdicts)


def replay(console: Console, recording: Recording, limits: Limits | None = None, taken: Taken = _nothing) -> Report:
    """What a judge says of a recording, sample by sample."""
    judge, story = Judge(limits or recording.header.limits), Story()
    with Screen(console) as screen:
        for sample in recording.samples:
            verdicts = judge.judge(sample)
            story.take(sample, verdicts)
            screen.show(sample, verdicts)
            taken(sample, verdicts)
    return story.end()


@contextmanager
def _recorder(path: Path | None, target: str, wanted: Wanted) -> Iterator[Callable[[Sample], None]]:
    if path is None:
        yield lambda _: None
        return

    @contextmanager
    def written() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OperationFailed(f"the recording {path} cannot be written", why=error.strerror) from error

    def keep(sample: Sample) -> None:
        with written():
            write_sample(file, sample)

    with written():
        file = path.open("w", encoding="utf-8")
    try:
        with written():
            started_at = datetime.now(UTC).isoformat(timespec="seconds")
            write_header(file, Header(target, started_at, wanted.interval_s, wanted.limits))
        yield keep
    finally:
        with written():
            file.close()


class Dwell:
    """The engine's own histogram of the time in the queue, over the length of a watch."""

    def __init__(self, prefills: Sequence[PrefillLook]) -> None:
        self._prefills = prefills
        self._before = {look.name: _histogram(look) for look in prefills}

    def report(self, story: Story, lost: int) -> Report:
        """The report with the quantiles of all workers together: of each, the largest."""
        bounds: dict[str, float] = {}
        count = 0
        for look in self._prefills:
            after = _histogram(look)
            if after is None:
                continue
            during = after.since(self._before[look.name])
            count += int(during.count)
            for name, quantile in _QUANTILES.items():
                bound = during.quantile_bound(quantile)
                if bound is not None:
                    bounds[name] = max(bounds.get(name, 0.0), bound)
        known = {name: bound if math.isfinite(bound) else None for name, bound in bounds.items()}
        return story.end(lost=lost, dwell_s=known, dwell_count=count)


def _histogram(look: PrefillLook) -> "Histogram | None":
    exposition = look.scrape_now()
    return exposition.buckets(DWELL, outcome="success") if exposition is not None else None
