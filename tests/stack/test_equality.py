"""Prefill and decode on two workers give the answer that one server gives, token for token."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import pytest

from serving.cpu.tiny_model import expected_answer

pytestmark = pytest.mark.stack

ANSWER_TOKENS = 24
# Around one page, around the default chunk of 4,096 tokens, and two chunks.
LENGTHS = (1, 2, 3, 5, 8, 13, 40, 100, 255, 256, 700, 1024, 2000, 3000, 4095, 4096, 4097, 5000, 6500, 8000)


@dataclass(frozen=True)
class Prompt:
    """A text, one byte a token, and the answer that follows from it by definition."""

    text: bytes
    answer: bytes


def prompts(seed: int, lengths: Sequence[int]) -> list[Prompt]:
    """One prompt of each length; each is words that recur, so that an answer hangs on a place far back."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(300)]
    texts = [" ".join(rng.choices(words, k=length))[:length].encode() for length in lengths]
    return [Prompt(text, expected_answer(text, ANSWER_TOKENS)) for text in texts]


def greedy_tokens(client: httpx.Client, url: str, prompt: Prompt) -> list[int]:
    """The ids that the server or router at `url` continues the prompt with."""
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS}
    reply = client.post(f"{url}/generate", json={"input_ids": list(prompt.text), "sampling_params": sampling})
    reply.raise_for_status()
    answer = reply.json()
    assert answer["meta_info"]["prompt_tokens"] == len(prompt.text)
    ids = answer["output_ids"]
    assert isinstance(ids, list)
    return ids


def check_equality(stack_url: str, single_url: str | None, *, lengths: Sequence[int] = LENGTHS, seed: int = 7) -> None:
    """Assert that the stack gives the right tokens for a prompt of each length, and the single server the same."""
    with httpx.Client(timeout=120) as client:
        for prompt in prompts(seed, lengths):
            label = f"prompt of {len(prompt.text)} tokens"
            stack = greedy_tokens(client, stack_url, prompt)
            assert bytes(stack) == prompt.answer, f"{label}: the stack does not answer what follows from the text"
            if single_url is not None:
                assert greedy_tokens(client, single_url, prompt) == stack, f"{label}: the single server differs"


def test_the_stack_answers_as_a_single_server(stack_url: str, single_url: str) -> None:
    check_equality(stack_url, single_url)
