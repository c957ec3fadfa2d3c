"""Requests as clients make them, and what became of each."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from tests.stack.faults.plan import Asked, Moment
from tests.stack.faults.prompts import Prompt

Fate = Literal["answered", "refused", "cut off", "went away", "no answer"]
"""answered: a whole answer with 200. refused: an error, as a status or in the stream. cut off: the connection ended.

went away: the client did. no answer: the client gave up waiting.
"""

_PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class Outcome:
    """What a client got: the text so far, the error if any, and when, in seconds of the monotonic clock."""

    asked: Asked
    prompt: Prompt
    fate: Fate
    sent_s: float
    ended_s: float
    status: int | None
    text: str
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether the text is the one right text, or the beginning of it where the answer was not whole."""
        if self.fate == "answered":
            return self.text == self.prompt.answer
        return self.prompt.answer.startswith(self.text)


@dataclass(frozen=True)
class Half:
    """The other half of a request that is asked by halves: prefill's URL, and where decode finds it."""

    url: str
    room: Mapping[str, object]


def body_of(asked: Asked, prompt: Prompt) -> dict[str, object]:
    """The JSON of a request."""
    if asked.api == "generate":
        sampling = {"temperature": 0, "max_new_tokens": prompt.tokens}
        return {"text": prompt.text, "rid": asked.rid, "sampling_params": sampling, "stream": asked.stream}
    body: dict[str, object] = {"model": "tiny", "temperature": 0, "max_tokens": prompt.tokens, "stream": asked.stream}
    if asked.api == "completions":
        return {**body, "prompt": prompt.text, "rid": asked.rid}
    return {**body, "messages": [{"role": "user", "content": prompt.text}], "rid": asked.rid}


@dataclass
class _Reading:
    """An answer while it comes in."""

    status: int | None = None
    text: str = ""
    error: str = ""
    whole: bool = False

    def take(self, asked: Asked, part: Mapping[str, Any]) -> None:
        """Add one JSON document: a whole answer or one event of a stream."""
        if "error" in part or part.get("object") == "error":
            self.error = json.dumps(part)
            return
        if asked.api == "generate":
            self.text = part["text"]
            self._end(part["meta_info"]["finish_reason"])
            return
        for choice in part["choices"]:
            message = choice.get("delta") or choice.get("message") or choice
            self.text += message.get("text") or message.get("content") or ""
            self._end(choice["finish_reason"])

    def _end(self, reason: object) -> None:
        kind = reason["type"] if isinstance(reason, dict) else reason
        if kind == "abort":
            self.error = json.dumps(reason)
        elif kind is not None:
            self.whole = True


async def _events(response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])


async def _read(
    client: httpx.AsyncClient, url: str, asked: Asked, body: Mapping[str, object], reading: _Reading
) -> None:
    async with client.stream("POST", url + _PATHS[asked.api], json=body) as response:
        reading.status = response.status_code
        if response.status_code != httpx.codes.OK:
            reading.error = (await response.aread()).decode(errors="replace")
        elif asked.stream:
            async for part in _events(response):
                reading.take(asked, part)
        else:
            reading.take(asked, json.loads(await response.aread()))


async def _ask(
    client: httpx.AsyncClient, url: str, asked: Asked, prompt: Prompt, reading: _Reading, half: Half | None
) -> Fate:
    body = body_of(asked, prompt)
    prefilling: asyncio.Task[httpx.Response] | None = None
    if half is not None:
        body |= half.room
        prefilling = asyncio.create_task(client.post(half.url + _PATHS[asked.api], json=body))
    try:
        await _read(client, url, asked, body, reading)
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        reading.error = f"{type(error).__name__}: {error}"
        return "cut off"
    finally:
        if prefilling is not None:
            prefilling.cancel()
            await asyncio.gather(prefilling, return_exceptions=True)
    if reading.error:
        return "refused"
    return "answered" if reading.whole else "cut off"


async def request(
    client: httpx.AsyncClient,
    url: str,
    asked: Asked,
    prompt: Prompt,
    *,
    give_up: asyncio.Event,
    moment: Callable[[Moment], Awaitable[None]],
    half: Half | None = None,
) -> Outcome:
    """Ask, until there is an answer, the client is meant to go away, or `give_up` is set; never raises for an answer.

    `moment` returns when the given moment has come. With `half`, `url` is decode's.
    """
    reading = _Reading()
    sent = time.monotonic()
    asking = asyncio.create_task(_ask(client, url, asked, prompt, reading, half))
    ends: list[asyncio.Task[object]] = [asyncio.create_task(_when(give_up))]
    if asked.closes_after_s is not None:
        ends.append(asyncio.create_task(_leave(asked.closes_after_s, asked.closes_when, moment)))
    await asyncio.wait([asking, *ends], return_when=asyncio.FIRST_COMPLETED)
    # An answer that came at the very moment of leaving is an answer.
    given_up: Fate = "no answer" if give_up.is_set() else "went away"
    fate = asking.result() if asking.done() else given_up
    for task in (asking, *ends):
        task.cancel()
    await asyncio.gather(asking, *ends, return_exceptions=True)
    return Outcome(asked, prompt, fate, sent, time.monotonic(), reading.status, reading.text, reading.error)


async def _when(event: asyncio.Event) -> None:
    await event.wait()


async def _leave(after_s: float, when: Moment, moment: Callable[[Moment], Awaitable[None]]) -> None:
    await asyncio.sleep(after_s)
    await moment(when)
