"""Times in the queue from recordings: never shorter than they were, and put together with a window."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.judge import Limits
from dsv4ctl.inflight.recording import Header, write_header, write_sample
from dsv4ctl.inflight.sample import Queue, Sample
from dsv4ctl.tuning.bound import Bound, bound_of
from dsv4ctl.tuning.dwells import Block, History
from dsv4ctl.tuning.recordings import joined, read_all, read_stays, recorded_lines
from dsv4ctl.tuning.session import checked_window_s
from serving.telemetry import DWELL_BUCKETS_S

EDGES = DWELL_BUCKETS_S
BLOCK_S = 5.0
BEGAN = 1_000_000.0
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(
        samples: Sequence[Sample], name: str = "watch.jsonl", target: str = "cpu", interval_s: float = 1.0
    ) -> Path:
        path = tmp_path / name
        with path.open("w") as file:
            write_header(file, Header(target, "2026-11-30T00:00:00+00:00", interval_s, Limits()))
            for sample in samples:
                write_sample(file, sample)
        return path

    return written


def look(
    at_s: float,
    left: float = 0,
    *,
    oldest_s: float = 0.0,
    count: int = 0,
    written_s: float = 0.0,
    worker: str = "prefill-0",
    **more: float,
) -> Sample:
    queue = Queue("dsv4", 0, count, written_age_s=written_s, oldest_age_s=oldest_s)
    return Sample(worker, at_s, BEGAN + at_s, queues=(queue,), left={"success": left, **more}, started="0")


def counts(history: History) -> dict[float, int]:
    """By the upper edges of the buckets with anything in them."""
    return {
        edge: count for edge, count in zip((*history.edges, float("inf")), history.in_buckets, strict=True) if count
    }


def test_what_was_in_the_queue_may_be_as_old_as_the_oldest_and_the_rest_came_later(write: Write) -> None:
    path = write([look(0, 10, oldest_s=20.0, count=2), look(1, 15), look(2, 15), look(3, 15)])
    found = read_stays(path, "cpu").history(EDGES, BLOCK_S)
    # Two for 20 s and what lies between the looks, three for that alone.
    assert counts(found) == {2.5: 3, 30.0: 2}
    assert found.seconds == pytest.approx(3.0, abs=0.1)


def test_how_old_the_figures_were_and_how_long_the_answer_took_count_as_well(write: Write) -> None:
    slow = replace(look(1, 3), round_trip_s=2.0)
    (stays,) = read_stays(write([look(0, written_s=4.0), slow]), "cpu").workers["prefill-0"]
    assert stays.took_s == pytest.approx(1.0 + 2.0 + 4.0, abs=0.1)


def test_what_was_ended_early_is_counted_as_that(write: Write) -> None:
    samples = [look(0, 1, timeout=0, aborted=1, failed=0, requeued=0)]
    samples += [look(1, 2, timeout=1, aborted=3, failed=1, requeued=5), look(2, 2, timeout=1, aborted=3, failed=1)]
    found = read_stays(write(samples[:2]), "cpu").history(EDGES, BLOCK_S)
    assert (found.requests, found.ended) == (5, 4)


def test_a_look_that_failed_leaves_a_longer_time_and_no_gap(write: Write) -> None:
    failed = Sample("prefill-0", 30.0, BEGAN + 30, failure="refused")
    stock = Sample("prefill-0", 31.0, BEGAN + 31, queues=(Queue("loads", 0, 1),), left={"transferred": 1.0})
    samples = [look(0), look(1), look(2), failed, stock, look(50, 4), look(51, 4)]
    assert counts(read_stays(write(samples), "cpu").history(EDGES, BLOCK_S)) == {60.0: 4}


def test_a_start_in_the_recording_begins_it_anew(write: Write) -> None:
    samples = [look(0, 5), look(1, 9), look(2, 1), look(3, 3)]
    assert read_stays(write(samples), "cpu").requests == 2
    samples = [look(0, 5), look(1, 9), replace(look(2, 10), started="1"), look(3, 13)]
    assert read_stays(write([*samples[:3], replace(samples[3], started="1")]), "cpu").requests == 3


def test_workers_are_together_in_blocks_of_the_same_time(write: Write) -> None:
    samples = [look(at, at, worker=worker) for at in range(12) for worker in ("prefill-0", "prefill-1")]
    found = read_stays(write(samples), "cpu").history(EDGES, BLOCK_S)
    assert [block.requests for block in found.blocks] == [8, 10, 4]
    assert sum(found.in_buckets) == 22


def test_blocks_are_no_shorter_than_the_distance_of_two_looks(write: Write) -> None:
    samples = [look(20.0 * at, 5 * at) for at in range(6)]
    found = read_stays(write(samples, interval_s=20.0), "cpu").history(EDGES, BLOCK_S)
    assert [block.requests for block in found.blocks] == [5, 5, 5, 5, 5]


@given(
    seed=st.integers(0, 10_000), interval_s=st.sampled_from([0.2, 1.0, 3.0]), per_s=st.sampled_from([0.3, 2.0, 20.0])
)
def test_no_request_is_counted_as_shorter_than_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, interval_s: float, per_s: float
) -> None:
    """A queue that is made up and looked at, with figures that are older than the look."""
    rng = random.Random(seed)
    stays: list[tuple[float, float]] = []
    at_s = -5.0
    while (at_s := at_s + rng.expovariate(per_s)) < 60:
        stays.append((at_s, at_s + rng.lognormvariate(-1.5, 1.5)))
    samples: list[Sample] = []
    at_s = 0.0
    moments: list[float] = []
    while at_s < 60:
        said_s = at_s - rng.uniform(0, 0.3)
        if moments and said_s < moments[-1]:
            said_s = moments[-1]
        inside = [began for began, ended in stays if began <= said_s < ended]
        left = sum(ended <= said_s for _, ended in stays)
        sample = look(
            at_s,
            left,
            count=len(inside),
            oldest_s=said_s - min(inside, default=said_s),
            written_s=at_s - said_s + rng.uniform(0, 0.2),
        )
        samples.append(replace(sample, round_trip_s=0.02))
        moments.append(said_s)
        at_s += interval_s * rng.uniform(0.9, 1.1)
    folder = tmp_path_factory.mktemp("made-up")
    path = folder / "watch.jsonl"
    with path.open("w") as file:
        write_header(file, Header("cpu", "", interval_s, Limits()))
        for sample in samples:
            write_sample(file, sample)
    found = read_stays(path, "cpu").history(EDGES, BLOCK_S)
    true = [ended - began for began, ended in stays if moments[0] < ended <= moments[-1]]
    assert found.requests == len(true)
    for bucket, edge in enumerate(EDGES):
        assert sum(found.above(bucket)) >= sum(stay > edge for stay in true)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "other"}, "a recording of other, and not of cpu"),
        ({"interval_s": 100.0}, "too far apart"),
    ],
)
def test_a_recording_that_is_no_evidence_is_refused(write: Write, change: Mapping[str, str], says: str) -> None:
    seconds = float(change.get("interval_s", 1.0))
    with pytest.raises(UsageError, match=says):
        read_stays(write([look(seconds * at, at) for at in range(4)], **change), "cpu")


def test_a_recording_without_ages_is_refused_and_so_is_a_trace(write: Write, tmp_path: Path) -> None:
    stock = [Sample("p", at, BEGAN + at, queues=(Queue("loads", 0, 1),), left={"transferred": at}) for at in range(4)]
    with pytest.raises(UsageError, match="says nothing of how long requests stayed") as refused:
        read_stays(write(stock), "cpu")
    assert "patched" in (refused.value.why or "")
    with pytest.raises(UsageError, match="says nothing of how long"):
        read_stays(write([look(0)]), "cpu")
    trace = tmp_path / "trace.txt"
    trace.write_text("0 1\n5 0\n")
    with pytest.raises(UsageError, match="says nothing of how long") as refused:
        read_stays(trace, "cpu")
    assert "a trace of counts" in (refused.value.why or "")


def test_recordings_come_in_their_order_and_none_counts_twice(write: Write) -> None:
    early = write([look(at, at) for at in range(4)], "early.jsonl")
    late = write([look(at, at) for at in range(100, 104)], "late.jsonl")
    assert [one.path for one in read_all([late, early], "cpu")] == [early, late]
    during = write([look(at, at) for at in range(2, 6)], "during.jsonl")
    with pytest.raises(UsageError, match=r"early.jsonl and .*during.jsonl were recorded at the same time"):
        read_all([early, late, during], "cpu")


def test_recordings_and_a_window_are_one_history_of_what_all_tell_apart(write: Write) -> None:
    window = History(EDGES, (Block(5.0, tuple(int(edge in (0.001, 1.0, 5.0)) for edge in (*EDGES, 0.0)), 1),) * 30)
    (recording,) = read_all([write([look(at, 2 * at) for at in range(151)])], "cpu")
    found = joined([recording], window, BLOCK_S)
    # Looks of one second tell nothing below 1.5 s or so.
    assert found.edges[0] == 2.5
    assert counts(found) == {2.5: 300 + 60, 5.0: 30}
    assert (found.requests, found.ended, len(found.blocks)) == (420, 30, 61)
    assert joined([], window, BLOCK_S) is window
    (line,) = recorded_lines([recording])
    assert line.startswith("of these, 300 in the 2m30s of watch.jsonl")


def test_a_recording_alone_bounds_what_it_has_seen(write: Write) -> None:
    (recording,) = read_all([write([look(at, 2 * at) for at in range(301)])], "cpu")
    found = bound_of(joined([recording], History(EDGES, ()), BLOCK_S))
    assert isinstance(found, Bound)
    assert (found.requests, found.seconds) == (600, 2.5)


@pytest.mark.parametrize(
    ("asked_s", "is_recorded", "seconds"),
    [(None, False, 600.0), (None, True, 0.0), (0.0, True, 0.0), (30.0, True, 30.0), (10.0, False, 10.0)],
)
def test_how_long_is_looked(asked_s: float | None, is_recorded: bool, seconds: float) -> None:
    assert checked_window_s(asked_s, is_recorded=is_recorded) == seconds


@pytest.mark.parametrize(("asked_s", "is_recorded"), [(0.0, False), (9.0, False), (5.0, True), (-1.0, True)])
def test_a_window_that_is_too_short_is_refused(asked_s: float, is_recorded: bool) -> None:
    with pytest.raises(UsageError, match="--window must be 10 s or longer"):
        checked_window_s(asked_s, is_recorded=is_recorded)
