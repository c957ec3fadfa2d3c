"""A recording replays to the same verdicts; a trace of two columns is read; nonsense is refused with its line."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.judge import Judge, Limits
from dsv4ctl.inflight.recording import Header, read_recording, write_header, write_sample
from dsv4ctl.inflight.report import Story
from dsv4ctl.inflight.sample import Decode, Event, Queue, Sample
from dsv4ctl.printable import printable

TRACE = "1 1 1 1 1 1 0 0 1 1 1 1 1 1 1 1 1"
HEADER = Header("stack", "2026-11-30T00:00:00+00:00", 1.0, Limits(9.0, 8.0))

counts = st.integers(0, 5)
# As a watch writes them; a file may hold others, which are made so when it is read.
texts = st.text().map(printable)
queues = st.builds(
    Queue,
    source=st.sampled_from(["dsv4", "loads", "gauge", "log"]),
    dp_rank=st.integers(0, 1),
    count=counts,
    written_age_s=st.none() | st.floats(0, 20),
    oldest_age_s=st.none() | st.floats(0, 100),
    oldest_id=st.none() | st.sampled_from(["aa", "bb"]),
    by_state=st.dictionaries(st.sampled_from(["transferring", "bootstrapping"]), counts),
    timeout_s=st.none() | st.sampled_from([0.0, 60.0]),
    fires=st.none() | counts,
)
samples = st.builds(
    Sample,
    worker=st.sampled_from(["prefill-0", "prefill-1"]),
    at_s=st.floats(0, 100),
    clock=st.floats(0, 2e9),
    round_trip_s=st.floats(0, 1),
    queues=st.lists(queues, max_size=2).map(tuple),
    left=st.dictionaries(st.sampled_from(["success", "failed"]), st.floats(0, 1e6)),
    decode=st.none() | st.builds(Decode, expecting=counts, silent_s=st.floats(0, 50)),
    events=st.lists(st.builds(Event, kind=st.just("fired"), text=texts, rid=st.none() | texts)).map(tuple),
    failure=st.sampled_from(["", "refused"]),
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        path = tmp_path / "watch.jsonl"
        path.write_text(text)
        return path

    return written


@given(st.lists(samples, min_size=1, max_size=12).map(lambda found: sorted(found, key=lambda sample: sample.at_s)))
def test_a_recording_replays_to_the_same_verdicts(
    tmp_path_factory: pytest.TempPathFactory, found: list[Sample]
) -> None:
    file = io.StringIO()
    write_header(file, HEADER)
    for sample in found:
        write_sample(file, sample)
    path = tmp_path_factory.mktemp("recording") / "watch.jsonl"
    path.write_text(file.getvalue(), encoding="utf-8")
    read = read_recording(path)
    assert read.header == HEADER
    assert read.samples == tuple(found)
    live, again = Judge(HEADER.limits), Judge(read.header.limits)
    assert [live.judge(sample) for sample in found] == [again.judge(sample) for sample in read.samples]


def told(path: Path) -> tuple[str, list[str]]:
    recording = read_recording(path)
    judge, story = Judge(), Story()
    for sample in recording.samples:
        story.take(sample, judge.judge(sample))
    report = story.end()
    return report.outcome, [doubt.what for doubt in report.doubts]


def test_the_trace_of_a_shell_loop_is_inconclusive_and_says_why(write: Callable[[str], Path]) -> None:
    lines = [f"{5 * i} {value}" for i, value in enumerate(TRACE.split())]
    outcome, (doubt,) = told(write("\n".join(lines)))
    assert outcome == "inconclusive"
    assert "at least two spans" in doubt
    assert "none observed for 60 s" in doubt
    assert "the gauge may be frozen" in doubt


@pytest.mark.parametrize(
    "text",
    [
        "14:03:05 1\n14:03:10 0\n",
        "2026-11-30 14:03:05 1\n2026-11-30 14:03:10 0\n",
        "# a comment\n\n1764500000.5\t1\n1764500005.5\t0\n",
        "23:59:58 1\n00:00:03 0\n",
    ],
)
def test_times_as_scripts_write_them(write: Callable[[str], Path], text: str) -> None:
    first, second = read_recording(write(text)).samples
    assert second.at_s - first.at_s == pytest.approx(5.0)
    assert [sample.queues[0].count for sample in (first, second)] == [1, 0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no sample"),
        ("hello world\n", "line 1: 'hello world' is no `time value`"),
        ("5 1\n3 1\n", "line 2: the time goes back"),
        ("5 -1\n", "-1 is no number of requests"),
        ("5 0.5\n", "0.5 is no number of requests"),
        ('{"kind": "other"}\n', "line 1: no recording of watch-inflight"),
        ('{"kind": "dsv4ctl watch-inflight", "schema_version": 9}\n', "version 9"),
        ("{\n", "line 1: no sample of a watch"),
    ],
)
def test_nonsense_is_refused_with_the_line(write: Callable[[str], Path], text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        read_recording(write(text))


def test_escapes_in_a_recording_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "forged.jsonl"
    with path.open("w") as file:
        write_header(file, Header("t", "", 1.0, Limits()))
        write_sample(file, Sample("p\x1b[2J", 0.0, 1.0, failure="\x9b5mgone"))
    (sample,) = read_recording(path).samples
    assert (sample.worker, sample.failure) == ("p\\x1b[2J", "\\x9b5mgone")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_recording(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_recording(tmp_path / "binary")


def test_a_last_line_that_was_cut_short_is_left_out(write: Callable[[str], Path]) -> None:
    file = io.StringIO()
    write_header(file, HEADER)
    write_sample(file, Sample("p", 1.0, 1.0))
    write_sample(file, Sample("p", 2.0, 2.0))
    assert len(read_recording(write(file.getvalue()[:-20])).samples) == 1
