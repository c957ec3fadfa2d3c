"""Times in the queue from recordings of watch-inflight: of each request that left, the longest that it can have stayed.

A recording says at each look how many requests were in the queue, how old the oldest was, and how many had left. So of
those that left until the next look as many as were in the queue may have been as old as the oldest; the others came
later. Neither has stayed longer than that and the time from the one look to the end of the next. Each is counted as if
it had stayed so long: a bound on these times is one on the true ones, and wider. What is shorter than the distance of
two looks is not told apart.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.recording import read_recording
from dsv4ctl.inflight.sample import Sample
from dsv4ctl.live import age_text
from dsv4ctl.tuning.dwells import Block, History, together
from dsv4ctl.tuning.scrapes import ARRIVED, ENDED_EARLY

SHOWN_WITHIN_S = 0.05
"""How late the engine may be in showing a change of its queue (docs/metrics.md)."""

UNCHANGED = 0.9
"""Figures whose age has grown by more than this part of the time between two looks may be the same ones."""

MOST_APART_S = 60.0
"""Looks further apart say nothing that a timeout could be made from."""

APART = 1.5
"""So many times the usual distance of two looks is the shortest time that is told apart: looks are not evenly spaced,
and which bucket a short stay comes into must not hang on that."""


@dataclass(frozen=True)
class Stays:
    """What left a worker's queue from one look to the next, which ended at `at_s` of the recording: so many requests
    arrived, by the longest that they can have stayed; so many were ended early."""

    at_s: float
    took_s: float
    arrived: Mapping[float, int]
    ended: int

    @property
    def requests(self) -> int:
        """All that left."""
        return sum(self.arrived.values()) + self.ended


@dataclass(frozen=True)
class Recorded:
    """What a recording says. `clock`: unix times of its first and its last look. `workers`: of each the stays since its
    last start in the recording."""

    path: Path
    target: str
    clock: tuple[float, float]
    interval_s: float
    seconds: float
    workers: Mapping[str, tuple[Stays, ...]]

    @property
    def requests(self) -> int:
        """All that left."""
        return sum(one.requests for stays in self.workers.values() for one in stays)

    @property
    def apart_s(self) -> float:
        """The shortest time that is told apart."""
        with_requests = [one.took_s for stays in self.workers.values() for one in stays if one.requests]
        return APART * max(self.interval_s, statistics.median(with_requests or [0.0]))

    def history(self, edges: tuple[float, ...], block_s: float) -> History:
        """As a history in these buckets, in blocks of so many seconds, or of the distance of two looks."""
        block_s = max(block_s, self.interval_s)
        return together(
            [_history(stays, edges, block_s, self.seconds, self.apart_s) for stays in self.workers.values()]
        )


def read_stays(path: Path, target: str) -> Recorded:
    """What a recording of this stack says.

    Raises:
        UsageError: it is no recording, is of another stack, or says nothing of how long requests stayed.
    """
    recording = read_recording(path)
    if recording.header.interval_s is None:
        raise UsageError(
            f"{path} says nothing of how long requests stayed",
            why="it is a trace of counts, and no recording of `dsv4ctl watch-inflight --record`",
        )
    if recording.header.target != target:
        raise UsageError(
            f"{path} is a recording of {recording.header.target}, and not of {target}",
            why="how long requests stay on one stack says nothing of another",
            hint=f"name {recording.header.target} as the profile",
        )
    samples = recording.samples
    workers = {name: _stays(name, samples) for name in dict.fromkeys(sample.worker for sample in samples)}
    found = Recorded(
        path,
        target,
        (samples[0].clock, samples[-1].clock),
        recording.header.interval_s,
        samples[-1].at_s,
        {name: stays for name, stays in workers.items() if stays},
    )
    if not found.workers:
        raise UsageError(
            f"{path} says nothing of how long requests stayed",
            why="no two looks of it have the age of the oldest request and how many have left, which only the patched "
            "engine says in /v1/loads",
            hint="measure with --window",
        )
    if not found.apart_s <= MOST_APART_S:
        raise UsageError(
            f"the looks of {path} are too far apart",
            why=f"stays below {found.apart_s:.0f} s are not told from each other by it",
            hint="record with a shorter --interval",
        )
    return found


def read_all(paths: Sequence[Path], target: str) -> tuple[Recorded, ...]:
    """What these recordings say, the earliest first.

    Raises:
        UsageError: as `read_stays`; or two are of the same time, and would count the same requests twice.
    """
    found = sorted((read_stays(path, target) for path in paths), key=lambda one: one.clock)
    for one, other in pairwise(found):
        if other.clock[0] <= one.clock[1]:
            raise UsageError(
                f"{one.path} and {other.path} were recorded at the same time",
                why="the requests of that time would count twice",
                hint="name one of them",
            )
    return tuple(found)


def joined(recordings: Sequence[Recorded], window: History, block_s: float) -> History:
    """One history of what was recorded and of a window after it, in blocks of so many seconds.

    Its first bucket has all that some recording does not tell apart, also of the others: else what is only told less
    sharply would look as if it had taken longer.
    """
    if not recordings or not window.edges:
        return window
    histories = [*(one.history(window.edges, block_s) for one in recordings), window]
    first = _bucket(max(one.apart_s for one in recordings), window.edges)
    blocks = tuple(
        Block(block.seconds, (sum(block.counts[: first + 1]), *block.counts[first + 1 :]), block.ended)
        for history in histories
        for block in history.blocks
    )
    return History(window.edges[first:], blocks)


def recorded_lines(recordings: Sequence[Recorded]) -> Iterator[str]:
    """What a person is told of each."""
    for one in recordings:
        yield (
            f"of these, {one.requests} in the {age_text(one.seconds)} of {one.path.name}, each counted as if it had "
            f"stayed as long as it can have; stays below {one.apart_s:.2g} s are not told apart"
        )


def _stays(worker: str, samples: Sequence[Sample]) -> tuple[Stays, ...]:
    """From look to look of one worker, since it was last started."""
    found: list[Stays] = []
    before: Sample | None = None
    age_s: float | None = None
    for sample in samples:
        if sample.worker != worker or not _says_all(sample):
            continue
        if before is None or _is_another_start(before, sample):
            found.clear()
            age_s = None
        else:
            took_s = _by_its_clock(before, sample)
            if took_s is None and age_s is not None:
                took_s = _answered_s(sample) - _answered_s(before) + age_s
            if took_s is not None:
                found.append(_between(before, sample, took_s + SHOWN_WITHIN_S))
            age_s = _oldest_age_s(before, sample, age_s)
        before = sample
    return tuple(found)


def _says_all(sample: Sample) -> bool:
    """Whether it has the age of the oldest request, when that was, and what has left."""
    return (
        not sample.failure
        and ARRIVED in sample.left
        and all(map(math.isfinite, sample.left.values()))
        and bool(sample.queues)
        and all(
            queue.source == "dsv4"
            and queue.written_age_s is not None
            and (not queue.count or queue.oldest_age_s is not None)
            for queue in sample.queues
        )
    )


def _is_another_start(before: Sample, after: Sample) -> bool:
    return before.started != after.started or any(
        after.left.get(outcome, 0.0) < count for outcome, count in before.left.items()
    )


def _by_its_clock(before: Sample, after: Sample) -> float | None:
    """From the figures of a look to what had left at the next, by the worker's own stamps; None where it gave none, or
    its clock was set back."""
    stamps = {queue.dp_rank: queue.published_at for queue in after.queues}
    seconds: list[float] = []
    for queue in before.queues:
        end_s = stamps.get(queue.dp_rank)
        began_s = queue.refreshed_at if queue.count else queue.published_at
        if end_s is None or began_s is None or queue.published_at is None or end_s < queue.published_at:
            return None
        seconds.append(end_s - began_s)
    return max(seconds) if all(map(math.isfinite, seconds)) else None


def _answered_s(sample: Sample) -> float:
    return sample.at_s + sample.round_trip_s


def _oldest_age_s(before: Sample, sample: Sample, age_s: float | None) -> float | None:
    """How old the figures of a look may be, where it has no stamps; None before any were seen to change, and where
    several ranks have their own.

    What a recording says of their age is right to some seconds at best: it is by the Date of an answer. But figures
    that have changed are younger than the look before, and those that have not have become older by the time since.
    """
    if len(sample.queues) != 1 or len(before.queues) != 1:
        return None
    since_s = _answered_s(sample) - _answered_s(before)
    written_s, written_before_s = (
        max(queue.written_age_s or 0.0 for queue in look.queues) for look in (sample, before)
    )
    if written_s - written_before_s > UNCHANGED * since_s:
        return None if age_s is None else age_s + since_s
    return since_s + before.round_trip_s + written_s


def _between(before: Sample, after: Sample, took_s: float) -> Stays:
    """What left between two looks, which are so far apart."""
    oldest_s = max((queue.oldest_age_s or 0.0 for queue in before.queues if queue.count), default=0.0)
    arrived = _more(before, after, ARRIVED)
    may_be_old = min(arrived, sum(queue.count for queue in before.queues))
    longest: dict[float, int] = {}
    for at_most_s, requests in ((took_s, arrived - may_be_old), (oldest_s + took_s, may_be_old)):
        longest[at_most_s] = longest.get(at_most_s, 0) + requests
    return Stays(after.at_s, took_s, longest, sum(_more(before, after, outcome) for outcome in ENDED_EARLY))


def _more(before: Sample, after: Sample, outcome: str) -> int:
    return int(after.left.get(outcome, 0.0) - before.left.get(outcome, 0.0))


def _history(
    stays: Sequence[Stays], edges: tuple[float, ...], block_s: float, seconds: float, apart_s: float
) -> History:
    """Blocks from the first stay to the end of the recording, on a grid that all of its workers share."""
    first, last = (math.floor(at_s / block_s) for at_s in (stays[0].at_s, seconds))
    counts = [[0] * (len(edges) + 1) for _ in range(first, last + 1)]
    ended = [0] * len(counts)
    for one in stays:
        block = math.floor(one.at_s / block_s) - first
        ended[block] += one.ended
        for at_most_s, requests in one.arrived.items():
            counts[block][_bucket(max(at_most_s, apart_s), edges)] += requests
    began_s = stays[0].at_s - stays[0].took_s
    return History(
        edges,
        tuple(
            Block(
                min(seconds, (first + number + 1) * block_s) - max(began_s, (first + number) * block_s),
                tuple(counts[number]),
                ended[number],
            )
            for number in range(len(counts))
        ),
    )


def _bucket(seconds: float, edges: tuple[float, ...]) -> int:
    return next((at for at, edge in enumerate(edges) if seconds <= edge), len(edges))
