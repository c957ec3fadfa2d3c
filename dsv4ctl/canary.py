"""The proof that a stack serves: a generation whose right answer is known beforehand, checked by content.

A phrase made of random words stands early in the prompt and is asked for at its end. A model that can read answers with
it; KV that was lost, stale or somebody else's does not. The tiny model of the CPU profile and an instructed
model are asked the same question. The phrase is new each time, so that no prefix cache can answer for a transfer.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed

if TYPE_CHECKING:
    import httpx

QUESTION = "The code word is:"
# fmt: off
_CODE_WORDS = (
    "amber", "birch", "cobalt", "ember", "fjord", "garnet", "harbor", "indigo", "juniper", "krypton", "lagoon", "maple",
)
_FILLER_WORDS = (
    "bridge", "carpet", "dozen", "engine", "forest", "gravel", "hammer", "island", "jacket", "kettle", "mirror",
)
# fmt: on
_ANSWER_TOKENS = 64


@dataclass(frozen=True)
class Prompt:
    """A question with one right answer. `text` is about as many tokens long as was asked for."""

    text: str
    answer: str


@dataclass(frozen=True)
class Answered:
    """A right answer: seconds from request to last byte, and the tokens that the server counted (None: it did not)."""

    seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None


def make_prompt(tokens: int, *, characters_per_token: float, rng: random.Random) -> Prompt:
    """A recall prompt of about `tokens` tokens.

    Filler lines are numbered, random, and made of other words than the code word, so that no stretch of it occurs a
    second time: a model that goes by similarity alone finds exactly one place to continue from.
    """
    answer = f"{'-'.join(rng.sample(_CODE_WORDS, 2))}-{rng.randrange(1000, 10_000)}"
    head = f"{QUESTION} {answer}\n"
    tail = f"Repeat the code word and nothing else.\n{QUESTION}"
    budget = int(tokens * characters_per_token) - len(head) - len(tail)
    filler: list[str] = []
    number = 0
    while budget > 0:
        number += 1
        line = f"{number}. {rng.choice(_FILLER_WORDS)} {rng.choice(_FILLER_WORDS)} {rng.randrange(10**6)}\n"
        filler.append(line)
        budget -= len(line)
    return Prompt(head + "".join(filler) + tail, answer)


def ask(
    client: "httpx.Client",
    url: str,
    model: str,
    prompt: Prompt,
    *,
    request: Mapping[str, object] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Answered:
    """Send the prompt to `url` (a router or a single server) and check the answer by content.

    `request` is merged into the body: what a given model needs to answer plainly.

    Raises:
        OperationFailed: no answer, a status other than 200, a finish reason that is an error, or a wrong answer.
    """
    import httpx

    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
        **(request or {}),
    }
    began = clock()
    try:
        response = client.post(f"{url}/v1/chat/completions", json=body)
    except httpx.TimeoutException as error:
        raise OperationFailed(f"{url} did not answer a generation within its deadline", why=str(error)) from error
    except httpx.HTTPError as error:
        raise OperationFailed(f"{url} could not be asked for a generation", why=str(error)) from error
    seconds = clock() - began
    if response.status_code != 200:
        raise OperationFailed(f"{url} answered a generation with HTTP {response.status_code}", why=response.text[:300])
    try:
        document = response.json()
        choice = document["choices"][0]
        content = choice["message"]["content"] or ""
        reason = choice.get("finish_reason")
        usage = document.get("usage") or {}
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise OperationFailed(
            f"{url} answered with something that is no chat completion: {response.text[:200]}"
        ) from error
    if reason not in {"stop", "length"}:
        raise OperationFailed(
            f"{url} answered HTTP 200 with finish reason {reason!r}", why=content[:200] or "no content"
        )
    if prompt.answer not in content:
        raise OperationFailed(
            f"{url} gave a wrong answer to a prompt of {usage.get('prompt_tokens', '?')} tokens",
            why=f"expected {prompt.answer!r} in it, got {content[:120]!r}",
        )
    return Answered(seconds, usage.get("prompt_tokens"), usage.get("completion_tokens"))
