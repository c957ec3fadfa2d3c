"""Times in the queue from recordings: never shorter than they were, and put together with a window."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.freshness import Freshness
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
MADE_UP_S = 60.0
BEGAN = 1_000_000.0
HERS = BEGAN + 3600
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
    published_s: float | None = None,
    refreshed_s: float | None = None,
    worker: str = "prefill-0",
    **more: float,
) -> Sample:
    """One look at a worker whose clock is an hour ahead; it has published its figures just then, if nothing is said."""
    published_at = HERS + (at_s if published_s is None else published_s)
    refreshed_at = published_at if refreshed_s is None else HERS + refreshed_s
    queue = Queue(
        "dsv4",
        0,
        count,
        written_age_s=0.0,
        oldest_age_s=oldest_s,
        published_at=published_at,
        refreshed_at=refreshed_at,
    )
    return Sample(worker, at_s, BEGAN + at_s, queues=(queue,), left={"success": left, **more}, started="0")


def without_stamps(sample: Sample, written_s: float) -> Sample:
    """The same as it was recorded before there were any."""
    (queue,) = sample.queues
    return replace(sample, queues=(replace(queue, published_at=None, refreshed_at=None, written_age_s=written_s),))


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


def took(path: Path) -> list[float]:
    return [one.took_s for stays in read_stays(path, "cpu").workers.values() for one in stays]


def test_the_time_between_two_looks_is_by_the_workers_own_clock(write: Write) -> None:
    """From when it wrote the figures, if there are any to write, to when it published what had left."""
    samples = [look(1, published_s=0.8, refreshed_s=0.2), look(2, 3, count=1, published_s=1.9, refreshed_s=1.5)]
    samples.append(replace(look(3, 5, published_s=2.9, refreshed_s=0.1), round_trip_s=9.0))
    assert took(write(samples)) == pytest.approx([1.1, 1.4], abs=0.1)


def test_a_clock_that_is_set_back_is_not_believed(write: Write) -> None:
    samples = [look(0), look(1, 1), look(2, 2, published_s=-50.0), look(3, 3, published_s=-49.0)]
    # From look to look by ours, as old as the figures of the look before may have been; then by its own again.
    assert took(write(samples)) == pytest.approx([1.0, 2.0, 1.0], abs=0.1)


def test_without_stamps_figures_are_as_old_as_they_can_be(write: Write) -> None:
    written = (0.0, 0.0, 0.4, 1.4, 0.0)
    samples = [without_stamps(look(at, at), age_s) for at, age_s in enumerate(written)]
    samples[-1] = replace(samples[-1], round_trip_s=0.5)
    # Of the first look nothing is known. Those of the third stood still for a look more.
    assert took(write(samples)) == pytest.approx([2.0, 2.4, 1.5 + 2.4], abs=0.1)
    two_ranks = [replace(one, queues=one.queues * 2) for one in samples]
    with pytest.raises(UsageError, match="says nothing of how long"):
        read_stays(write(two_ranks), "cpu")


def test_what_was_ended_early_is_counted_as_that(write: Write) -> None:
    samples = [look(0, 1, timeout=0, aborted=1, failed=0, requeued=0)]
    samples += [look(1, 2, timeout=1, aborted=3, failed=1, requeued=5), look(2, 2, timeout=1, aborted=3, failed=1)]
    found = read_stays(write(samples[:2]), "cpu").history(EDGES, BLOCK_S)
    assert (found.requests, found.ended) == (5, 4)


def test_a_look_that_failed_leaves_a_longer_time_and_no_gap(write: Write) -> None:
    failed = Sample("prefill-0", 30.0, BEGAN + 30, failure="refused")
    stock = Sample("prefill-0", 31.0, BEGAN + 31, queues=(Queue("loads", 0, 1),), left={"transferred": 1.0})
    samples = [look(0), look(1, 1), look(2, 2), failed, stock, look(50, 6), look(51, 7)]
    assert counts(read_stays(write(samples), "cpu").history(EDGES, BLOCK_S)) == {2.5: 3, 60.0: 4}


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
    seed=st.integers(0, 10_000),
    interval_s=st.sampled_from([0.2, 1.0, 3.0]),
    per_s=st.sampled_from([0.3, 2.0, 20.0]),
    is_stamped=st.booleans(),
)
def test_no_request_is_counted_as_shorter_than_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, interval_s: float, per_s: float, is_stamped: bool
) -> None:
    """A queue that is made up, whose figures are published now and then, and served with a Date that is behind."""
    rng = random.Random(seed)
    stays = sorted(made_up_stays(rng, per_s), key=lambda stay: stay[1])
    samples = list(made_up_looks(rng, stays, interval_s, is_stamped=is_stamped))
    path = tmp_path_factory.mktemp("made-up") / "watch.jsonl"
    with path.open("w") as file:
        write_header(file, Header("cpu", "", interval_s, Limits()))
        for one in samples:
            write_sample(file, one)
    recorded = read_stays(path, "cpu")
    # Of a recording without stamps the first looks are left out.
    began_s = recorded.workers["prefill-0"][0].at_s
    first = next(at for at, one in enumerate(samples) if one.at_s == began_s) - 1
    left = [int(one.left["success"]) for one in samples]
    true = [ended - began for began, ended in stays[left[first] : left[-1]]]
    longest = [at_most_s for one in recorded.workers["prefill-0"] for at_most_s in one.arrived.items()]
    counted = sorted(at_most_s for at_most_s, requests in longest for _ in range(requests))
    assert len(counted) == len(true)
    assert all(at_most_s >= stay for at_most_s, stay in zip(counted, sorted(true), strict=True))
    found = recorded.history(EDGES, BLOCK_S)
    for bucket, edge in enumerate(EDGES):
        assert sum(found.above(bucket)) >= sum(stay > edge for stay in counted)


def made_up_stays(rng: random.Random, per_s: float) -> Iterator[tuple[float, float]]:
    """When each came and when it left."""
    at_s = -5.0
    while (at_s := at_s + rng.expovariate(per_s)) < MADE_UP_S:
        yield at_s, at_s + rng.lognormvariate(-1.5, 1.5)


def made_up_looks(
    rng: random.Random, stays: Sequence[tuple[float, float]], interval_s: float, *, is_stamped: bool
) -> Iterator[Sample]:
    """What a watch sees of these stays: an empty queue is shown at once, one with something in it a while later."""
    published = [-1.0]
    while published[-1] < MADE_UP_S:
        published.append(published[-1] + rng.choice([0.05, 0.2, 2.0]) * rng.uniform(0.5, 1.0))
    freshness = Freshness()
    at_s, round_trip_s = 0.0, 0.02
    while at_s < MADE_UP_S:
        said_s = max(one for one in published if one <= at_s)
        shown_s = said_s - rng.uniform(0, 0.25)
        inside = [came for came, went in stays if came <= shown_s < went]
        if not inside:
            shown_s = said_s
            inside = [came for came, went in stays if came <= shown_s < went]
        sample = look(
            at_s,
            sum(went <= said_s for _, went in stays),
            count=len(inside),
            oldest_s=shown_s - min(inside, default=shown_s),
            published_s=said_s,
            refreshed_s=shown_s,
        )
        served = formatdate(int(HERS + at_s - rng.uniform(0, 1)), usegmt=True)
        written_s = freshness.age_s(HERS + said_s, at_s + round_trip_s, served) + said_s - shown_s
        sample = replace(sample, round_trip_s=round_trip_s)
        yield sample if is_stamped else without_stamps(sample, written_s)
        at_s += interval_s * rng.uniform(0.9, 1.1)


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


def test_numbers_that_no_engine_says_are_not_taken(write: Write) -> None:
    samples = [look(0), look(1, float("1e999")), look(2, 2, published_s=float("1e999")), look(3, 3)]
    path = write([*samples, look(4, 4)])
    path.write_text(path.read_text().replace("Infinity", "1e999"))
    assert all(seconds < 10 for seconds in took(path))


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
