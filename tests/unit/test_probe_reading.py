"""What a body is worth: each way to be no right answer has a word of its own, however the bytes arrive."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.probe.outcome import Outcome
from dsv4ctl.probe.reading import Reading, judge, repetition

CODE = "bcdf-1234"


def event(content: str | None = None, reason: object = None, **more: object) -> str:
    choice = {"index": 0, "delta": {"content": content} | more, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def stream(*events: str, done: bool = True) -> str:
    return "".join(events) + ("data: [DONE]\n\n" if done else "")


def read(body: str, *, events: bool = True) -> Reading:
    reading = Reading(events=events)
    reading.feed(body.encode())
    reading.end()
    return reading


RIGHT = stream(event(f" {CODE}"), event("", "stop"), 'data: {"choices": [], "usage": {"prompt_tokens": 9}}\n\n')

CASES = [
    (RIGHT, Outcome.RIGHT, ""),
    (stream(event(CODE), event(reason="length")), Outcome.RIGHT, ""),
    (stream(event("bcdf-1235", "stop")), Outcome.WRONG, "expected 'bcdf-1234'"),
    (stream(event("", "stop")), Outcome.EMPTY, "no text"),
    (stream(event(" \n", "length")), Outcome.EMPTY, "no text"),
    (stream(event("!" * 48, "length")), Outcome.REPEATS, "'!' over and over"),
    (stream(event(CODE + "ab " * 20, "length")), Outcome.REPEATS, "over and over"),
    (stream(event(CODE), event(reason="error")), Outcome.ERROR_IN_200, "finish reason 'error'"),
    (stream(event(CODE), event(reason="abort")), Outcome.ERROR_IN_200, "finish reason 'abort'"),
    (stream(event(CODE), event(reason={"type": "abort", "message": "no"})), Outcome.ERROR_IN_200, "'abort'"),
    (stream("data: " + "[" * 100_000 + "\n\n"), Outcome.NO_COMPLETION, "[["),
    ("\ufeff" + RIGHT, Outcome.RIGHT, ""),
    (RIGHT.replace("\n", "\r"), Outcome.RIGHT, ""),
    (RIGHT.replace('"choices"', '\ndata: "choices"', 1), Outcome.RIGHT, ""),
    (stream(event("bc"), 'data: {"error": {"message": "lost"}}\n\n'), Outcome.ERROR_IN_200, "lost"),
    (stream('data: {"object": "error", "message": "lost"}\n\n', done=False), Outcome.ERROR_IN_200, "lost"),
    (stream(event(CODE), done=False), Outcome.ENDED_EARLY, "without [DONE] and without a finish reason"),
    (stream(event(CODE, "stop"), done=False), Outcome.ENDED_EARLY, "without [DONE]"),
    (stream(event(CODE)), Outcome.ENDED_EARLY, "without a finish reason"),
    ("", Outcome.ENDED_EARLY, "before any text"),
    (stream("data: <html>\n\n"), Outcome.NO_COMPLETION, "<html>"),
    (stream('data: {"choices": 3}\n\n'), Outcome.NO_COMPLETION, "choices"),
    (stream("data: [1]\n\n"), Outcome.NO_COMPLETION, "[1]"),
    (stream(event(None, "stop", reasoning_content=f"it is {CODE}")), Outcome.RIGHT, ""),
    (stream(event(None, "length", reasoning_content="let me think")), Outcome.EMPTY, "only reasoning"),
]


@pytest.mark.parametrize(("body", "outcome", "says"), CASES)
def test_a_stream_is_judged(body: str, outcome: Outcome, says: str) -> None:
    found, detail = judge(read(body), CODE)
    assert found is outcome
    assert says in detail


@given(st.sampled_from(CASES), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_it_does_not_matter_where_the_bytes_are_cut(case: tuple[str, Outcome, str], sizes: list[int]) -> None:
    body, outcome, _ = case
    reading, rest = Reading(events=True), body.encode()
    for size in sizes:
        reading.feed(rest[:size])
        rest = rest[size:]
    reading.feed(rest)
    reading.end()
    assert judge(reading, CODE)[0] is outcome


def test_only_events_are_progress() -> None:
    reading = Reading(events=True)
    assert not reading.feed(b": still here\n\n")
    assert not reading.feed(b"data: {")
    assert not reading.feed(b'"choices": []}\r\n')
    assert reading.feed(b"\r\n")
    assert reading.comments == 1


def test_one_document_is_judged_by_the_same_words() -> None:
    good = {"choices": [{"message": {"content": CODE}, "finish_reason": "stop", "meta_info": {"e2e_latency": 1}}]}
    reading = read(json.dumps(good), events=False)
    assert judge(reading, CODE) == (Outcome.RIGHT, "")
    assert reading.meta == {"e2e_latency": 1}
    assert judge(read('{"choices": [{"message": {}}]}', events=False), CODE)[0] is Outcome.ENDED_EARLY
    assert judge(read("<html>", events=False), CODE)[0] is Outcome.NO_COMPLETION
    assert judge(read('{"error": "no"}', events=False), None)[0] is Outcome.ERROR_IN_200


@given(st.text(st.characters(codec="ascii"), max_size=80))
def test_what_a_text_ends_in_over_and_over_is_what_it_ends_in(text: str) -> None:
    unit = repetition(text)
    if unit is not None:
        assert text.rstrip("\n").endswith(unit * 4)


@given(st.text("abcd", min_size=1, max_size=12), st.integers(41, 60))
def test_endless_repetition_is_seen(unit: str, times: int) -> None:
    assert repetition("The code is " + unit * times) is not None


def test_lines_and_lists_do_not_repeat() -> None:
    for text in (CODE, "-" * 20, "1. one\n2. two\n3. three\n4. four\n5. five"):
        assert repetition(text) is None
