"""The canary's prompt has one right answer, of the size asked for; anything but that answer is a failure."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.canary import QUESTION, ask, make_prompt
from dsv4ctl.errors import OperationFailed


@given(st.integers(1, 20_000), st.sampled_from([1.0, 3.5, 4.0]), st.integers(0, 2**32))
def test_a_prompt_has_its_size_and_names_the_answer_once(tokens: int, per_token: float, seed: int) -> None:
    prompt = make_prompt(tokens, characters_per_token=per_token, rng=random.Random(seed))
    assert prompt.text.count(prompt.answer) == 1
    assert prompt.text.count(QUESTION) == 2
    assert prompt.text.endswith(QUESTION)
    assert abs(len(prompt.text) - max(tokens * per_token, 100)) < 60


@given(st.integers(0, 2**32))
def test_every_prompt_is_new(seed: int) -> None:
    rng = random.Random(seed)
    first, second = (make_prompt(500, characters_per_token=1, rng=rng) for _ in range(2))
    assert first.text[:60] != second.text[:60]


Answer = Callable[[httpx.Request], httpx.Response]


def _ask(answer: Answer) -> object:
    prompt = make_prompt(200, characters_per_token=1, rng=random.Random(7))
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return ask(client, "http://stack", "tiny", prompt)


def _completion(content: str | None, reason: str = "stop") -> httpx.Response:
    choice = {"message": {"content": content}, "finish_reason": reason}
    return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": 200}})


def _echo(request: httpx.Request) -> httpx.Response:
    body: dict[str, Any] = json.loads(request.content)
    text = body["messages"][0]["content"]
    return _completion(text.splitlines()[0].removeprefix(QUESTION))


def test_the_right_answer_passes() -> None:
    assert _ask(_echo) is not None


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def _stall(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("nothing came")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: _completion("amber-amber-0000"), "wrong answer"),
        (lambda _: _completion(None), "wrong answer"),
        (
            lambda request: _completion(_echo(request).json()["choices"][0]["message"]["content"], "error"),
            "reason 'error'",
        ),
        (lambda _: httpx.Response(503, text="no worker"), "HTTP 503"),
        (lambda _: httpx.Response(200, text="<html>"), "no chat completion"),
        (lambda _: httpx.Response(200, json={"choices": []}), "no chat completion"),
        (_refuse, "could not be asked"),
        (_stall, "did not answer"),
    ],
)
def test_everything_else_is_a_failure_that_says_which(answer: Answer, says: str) -> None:
    with pytest.raises(OperationFailed, match=says):
        _ask(answer)
