"""A conversation grows, and each of its questions has one right answer, which even the model built by hand gives."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.probe.questions import MAX_ROUNDS, Conversation, body_of, gaps_of
from serving.cpu.tiny_model import expected_answer


def said(messages: tuple[object, ...]) -> str:
    """The text that the tiny model's chat template makes of messages."""
    return "\n".join(message["content"] for message in messages if isinstance(message, dict))


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.integers(0, 300))
def test_the_tiny_model_answers_every_round_of_a_conversation_rightly(seed: int, grow: int) -> None:
    conversation = Conversation(random.Random(seed), grow=grow, limit=2000)
    for _ in range(5):
        question = conversation.ask()
        answer = expected_answer(said(question.messages).encode(), 14).decode()
        assert question.answer in answer
        conversation.hear(answer)


def test_rounds_of_two_digits_are_told_from_those_of_one() -> None:
    conversation = Conversation(random.Random(1), grow=0, limit=0)
    for number in range(1, 25):
        question = conversation.ask()
        conversation.hear(f" {question.answer}")
        if number in {2, 12, 22, 24}:
            assert question.answer in expected_answer(said(question.messages).encode(), 12).decode()


@given(st.integers(0, 2**32), st.integers(100, 400), st.integers(500, 3000))
def test_it_grows_up_to_its_limit(seed: int, grow: int, limit: int) -> None:
    conversation = Conversation(random.Random(seed), grow=grow, limit=limit)
    sizes = []
    for _ in range(12):
        question = conversation.ask()
        sizes.append(question.characters)
        conversation.hear("")
    assert sizes == sorted(sizes)
    least = len("Code 12: bbbb-1000\nRepeat code 12 and nothing else.\nCode 12:")
    for before, after in itertools.pairwise(sizes):
        assert after - before <= max(grow, least) + 40
        assert after - before >= least - 3 or before >= limit
    assert sizes[-1] <= limit + 12 * (least + 40)


@given(st.integers(0, 2**32))
def test_no_two_codes_of_a_conversation_are_alike(seed: int) -> None:
    conversation = Conversation(random.Random(seed), grow=0, limit=0)
    codes = []
    for _ in range(MAX_ROUNDS):
        codes.append(conversation.ask().answer)
        conversation.hear("")
    runs = [code[at : at + 3] for code in codes for at in range(2)]
    runs += [code[at : at + 5] for code in codes for at in range(5)]
    assert len(runs) == len(set(runs))
    with pytest.raises(UsageError, match="at most"):
        conversation.ask()


def test_what_a_model_needs_wins_but_not_over_streaming() -> None:
    body = body_of("m", (), {"temperature": 1, "stream": False, "seed": 3}, stream=True)
    assert (body["temperature"], body["seed"], body["stream"]) == (1, 3, True)
    assert "stream_options" not in body_of("m", (), {}, stream=False)


def test_gaps_are_seconds() -> None:
    assert gaps_of("0,4, 6.5") == (0.0, 4.0, 6.5)
    for wrong in ("", "a", "1,,2", "-1", "nan", "1e9"):
        with pytest.raises(UsageError):
            gaps_of(wrong)
