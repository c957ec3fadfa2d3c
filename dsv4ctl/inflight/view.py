"""How a watch looks: a row for each queue with the recent past as a sparkline, or a line for each sample."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4ctl.console import Column
from dsv4ctl.inflight.report import Report
from dsv4ctl.inflight.sample import Event, Sample
from dsv4ctl.inflight.spans import Span
from dsv4ctl.inflight.verdict import Verdict
from dsv4ctl.live import age_text

COLUMNS = (
    Column("queue"),
    Column("state"),
    Column("inflight", right=True),
    Column("recent"),
    Column("oldest", right=True),
    Column("of the timeout"),
)
_BARS = "▁▂▃▄▅▆▇█"
_RECENT = 16
_BAR_WIDTH = 8
_UNSEEN = "·"


def sparkline(counts: Sequence[int | None], width: int = _RECENT) -> str:
    """The last counts as bars against the largest of them; a dot where nothing was seen, a blank line for zero."""
    recent = list(counts)[-width:]
    most = max((count for count in recent if count), default=1)
    return "".join(
        _UNSEEN if count is None else " " if count == 0 else _BARS[min(7, (count * 8 - 1) // most)] for count in recent
    )


def bar(age_s: float | None, timeout_s: float | None, width: int = _BAR_WIDTH) -> str:
    """How much of the watchdog's timeout the oldest request has used, as a bar and in seconds; `off` without one."""
    if timeout_s is None:
        return "unknown"
    if not timeout_s:
        return "off"
    full = min(width, round(width * (age_s or 0.0) / timeout_s))
    return f"{'█' * full}{'░' * (width - full)} {timeout_s:g} s"


@dataclass
class Board:
    """What is shown of all queues now. `take` adds a sample and its verdicts."""

    _counts: dict[str, deque[int | None]] = field(default_factory=dict)
    _rows: dict[str, list[str]] = field(default_factory=dict)
    _evidence: dict[str, str] = field(default_factory=dict)
    _events: dict[str, Event] = field(default_factory=dict)

    def take(self, sample: Sample, verdicts: Sequence[Verdict]) -> None:
        """One more sample."""
        queues = {queue.dp_rank: queue for queue in sample.queues}
        if sample.events:
            self._events[sample.worker] = sample.events[-1]
        for verdict in verdicts:
            counts = self._counts.setdefault(verdict.queue, deque(maxlen=_RECENT))
            counts.append(verdict.count)
            queue = queues.get(verdict.dp_rank)
            self._rows[verdict.queue] = [
                verdict.queue,
                verdict.state,
                "-" if verdict.count is None else str(verdict.count),
                sparkline(counts),
                age_text(verdict.oldest_s) if verdict.oldest_s is not None else "-",
                bar(verdict.oldest_s, queue.timeout_s) if queue is not None else "-",
            ]
            by = f" (by {queue.source})" if queue is not None else ""
            self._evidence[verdict.queue] = f"{verdict.queue}: {'; '.join(verdict.evidence)}{by}"

    def rows(self) -> list[list[str]]:
        """The rows of the table, by COLUMNS."""
        return list(self._rows.values())

    def evidence(self) -> list[str]:
        """What each verdict rests on, a line for each queue."""
        return list(self._evidence.values())

    def last_events(self) -> list[str]:
        """The last line of each worker's log that says something of its queue."""
        return [f"{worker} | {event.text}" for worker, event in self._events.items()]


def line(clock: str, verdict: Verdict, sample: Sample) -> str:
    """One verdict as a line, for a log or a pipe; the first of its evidence, which says the most."""
    count = "-" if verdict.count is None else str(verdict.count)
    oldest = f" oldest {age_text(verdict.oldest_s)}" if verdict.oldest_s is not None else ""
    known = f" {verdict.basis}" if verdict.chance is None else f" by chance {verdict.chance:.1g}"
    took = f" ({sample.round_trip_s * 1000:.0f} ms)" if sample.round_trip_s else ""
    said = f"{clock} {verdict.queue} {verdict.state:<11} {count:>3}{oldest} [{known.strip()}]"
    return f"{said} {'; '.join(verdict.evidence[:1])}{took}"


def story(report: Report) -> list[str]:
    """The report in words, a line each."""
    lines = [_how_well(report)]
    lines += [
        f"{span.queue}: something inflight from {span.began_s:.1f} to {span.last_s:.1f} s, for {span.seen_s:.1f} s "
        f"at {span.looks} looks, at most {span.most}{_end_of(span)}"
        for span in report.spans[-20:]
    ]
    if report.spans_seen > 20:
        lines.insert(1, f"{report.spans_seen} spans with something inflight, the last 20 of them:")
    for pin in report.pins:
        which = f"request {pin.named}" if pin.request else f"{pin.requests} at least, which the source does not name"
        over = "gone since" if pin.ended else "not seen since" if pin.unseen else "still there"
        lines.append(f"{pin.queue}: PINNED for at least {pin.oldest_s:.1f} s: {which}; {over} ({pin.basis})")
    for fire in report.fires:
        after = f" after {fire.age_s:.1f} s" if fire.age_s is not None else ""
        which = f"request {fire.request or 'unknown'}" + (f" and {fire.requests - 1} more" if fire.requests > 1 else "")
        lines.append(f"{fire.queue}: the watchdog FIRED{after}: {which}, {fire.at_s:.1f} s")
    if report.dwell_s:
        bounds = ", ".join(
            f"{name} beyond the last bucket" if bound is None else f"{name} at most {bound:g} s"
            for name, bound in report.dwell_s.items()
        )
        lines.append(f"time in the queue of {report.dwell_count} requests: {bounds} (bounds of the engine's histogram)")
    if report.unlogged:
        lines.append(f"the log could not be followed at {report.unlogged} looks: {report.unlogged_why}")
    for doubt in report.doubts:
        lines.append(f"{doubt.queue}: INCONCLUSIVE: {doubt.what}")
        lines.append(f"  what would settle it: {doubt.settled_by}")
    return lines


def _how_well(report: Report) -> str:
    took = ""
    median_s, p99_s = report.round_trip_median_s, report.round_trip_p99_s
    if median_s and p99_s:
        took = f", round trip {median_s * 1000:.0f} ms, 99 % within {p99_s * 1000:.0f} ms"
    looks = f"{report.looks} looks, {report.failed} without an answer, {_stale(report)}{report.lost} lost"
    return f"watched for {report.seconds:.0f} s: {looks}{took}; by {', '.join(report.sources) or 'nothing'}"


def _end_of(span: Span) -> str:
    if span.lost:
        return ", and then it could not be seen"
    return "" if span.ended else ", and still"


def _stale(report: Report) -> str:
    return f"{report.stale} at figures that stood still, " if report.stale else ""
