"""The picture of a watch: what goes into it, and that a watch that could leave none does not begin."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import OperationFailed, UsageError
from dsv4ctl.inflight.judge import Judge
from dsv4ctl.inflight.plot import Curve, Curves, Picture, spans_of
from dsv4ctl.inflight.sample import Queue, Sample
from dsv4ctl.inflight.verdict import ORDER, State

PNG = b"\x89PNG\r\n\x1a\n"


def watched() -> list[Sample]:
    """One request that is pinned until the watchdog ends it at 30 s, a worker that does not answer, an empty queue."""
    pinned = [
        Sample("prefill", at_s, at_s, queues=(Queue("dsv4", 0, 1, None, 0.1, at_s, "beef", timeout_s=30.0, fires=0),))
        for at_s in map(float, range(30))
    ]
    gone = [Sample("prefill", at_s, at_s, failure="connection refused") for at_s in (31.0, 32.0)]
    empty = Queue("dsv4", 0, 0, written_age_s=0.1, timeout_s=30.0, fires=1)
    return [
        *pinned,
        Sample("prefill", 30.0, 30.0, queues=(empty,)),
        *gone,
        Sample("prefill", 33.0, 33.0, queues=(empty,)),
    ]


def taken(taker: Curves | Picture) -> None:
    judge = Judge()
    for sample in watched():
        taker.take(sample, judge.judge(sample))


def test_the_curves_say_what_was_seen_and_have_gaps_where_nothing_was() -> None:
    curves = Curves()
    taken(curves)
    curve = curves.of_queue["prefill"]
    assert curve.at_s == [float(second) for second in range(34)]
    assert curve.count == [1] * 30 + [0, None, None, 0]
    assert curve.oldest_s[:30] == [float(second) for second in range(30)]
    assert curve.oldest_s[31:33] == curve.timeout_s[31:33] == [None, None]
    assert curve.fired_s == [30.0]
    (pinned,) = spans_of(curve, "pinned")
    assert pinned[1] == 30.0
    assert spans_of(curve, "unreachable") == [(31.0, 33.0)]


@given(st.lists(st.tuples(st.floats(0.1, 5), st.sampled_from(ORDER)), min_size=1, max_size=40))
def test_the_spans_of_all_states_cover_a_watch_once(steps: list[tuple[float, State]]) -> None:
    at_s = 0.0
    curve = Curve()
    for step_s, state in steps:
        curve.at_s.append(at_s)
        curve.state.append(state)
        at_s += step_s
    spans = sorted(span for state in ORDER for span in spans_of(curve, state) if span[0] != span[1])
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert sum(ended - began for began, ended in spans) == pytest.approx(curve.at_s[-1] - curve.at_s[0])


def test_a_picture_says_its_words_and_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        picture = Picture(path)
        taken(picture)
        assert picture.draw("the box") == path
    text = first.read_text()
    for word in ("the box", "prefill", "inflight", "pinned", "unreachable", "oldest", "timeout", "watchdog fired"):
        assert f">{word}<" in text, word
    assert text == second.read_text()


def test_a_png_is_one_also_when_nothing_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "empty.PNG"
    Picture(path).draw("the box")
    assert path.read_bytes().startswith(PNG)


def test_no_path_no_picture() -> None:
    picture = Picture(None)
    taken(picture)
    assert picture.draw("the box") is None


def test_what_cannot_be_drawn_is_said_before_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"one of \.svg, \.png"):
        Picture(tmp_path / "watch.jpg")
    with pytest.raises(OperationFailed, match="cannot be written"):
        Picture(tmp_path / "no such folder" / "watch.svg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="needs matplotlib") as failed:
        Picture(tmp_path / "watch.svg")
    assert "dsv4ctl[plot]" in (failed.value.hint or "")
