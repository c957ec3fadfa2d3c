"""Clients that ask again and again while something is done to a stack, and what they saw of it."""

import asyncio
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import httpx

from tests.stack.faults.load import Outcome, request
from tests.stack.faults.plan import Api, Asked, Moment
from tests.stack.faults.prompts import Prompt, make_prompt

_LENGTHS = (10, 8_000)
_APIS: tuple[Api, ...] = ("generate", "completions", "chat")
_TOKENS = 8
_AGAIN_AFTER_S = 0.2
# No answer within this long is a client that hangs.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Seen:
    """All that the clients got, in the order in which it came."""

    outcomes: tuple[Outcome, ...]

    @property
    def wrong(self) -> tuple[Outcome, ...]:
        """Whole answers with another text than the right one, and parts of answers that no right one begins with."""
        return tuple(outcome for outcome in self.outcomes if not outcome.right)

    @property
    def hung(self) -> tuple[Outcome, ...]:
        """Requests that came to nothing."""
        return tuple(outcome for outcome in self.outcomes if outcome.fate == "no answer")

    @property
    def fates(self) -> Counter[str]:
        """How many of each, errors by their status."""
        return Counter(o.fate if o.fate != "refused" else f"refused {o.status}" for o in self.outcomes)

    @property
    def right_at(self) -> tuple[float, ...]:
        """When right answers came, on the monotonic clock."""
        return tuple(sorted(o.ended_s for o in self.outcomes if o.fate == "answered" and o.right))

    def downtime_s(self, since: float) -> float:
        """The longest time without a right answer after `since`."""
        moments = [since, *(moment for moment in self.right_at if moment >= since)]
        return max((later - earlier for earlier, later in pairwise(moments)), default=float("inf"))


class RetryingClients:
    """So many clients, half of them streaming, with prompts of 10 to 8,000 tokens. A context manager; `seen` at the
    end."""

    def __init__(self, url: str, clients: int, seed: int) -> None:
        self._url = url
        self._clients = clients
        self._seed = seed
        self._stop = threading.Event()
        self._outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "RetryingClients":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def answered(self) -> int:
        """How many right answers have come so far."""
        return len(Seen(tuple(self._outcomes)).right_at)

    def stop(self) -> Seen:
        """Let every client end what it has begun."""
        self._stop.set()
        self._thread.join(PATIENCE_S + 10)
        assert not self._thread.is_alive()
        return Seen(tuple(self._outcomes))

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            await asyncio.gather(*(self._client(client, number) for number in range(self._clients)))

    async def _client(self, client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(self._seed * 1000 + number)
        asked_so_far = 0
        while not self._stop.is_set():
            asked_so_far += 1
            prompt = make_prompt(rng, rng.randint(*_LENGTHS) if rng.random() < 0.3 else rng.randint(10, 600), _TOKENS)
            asked = Asked(
                rid=f"retry-{number}-{asked_so_far}",
                at_s=0.0,
                api=rng.choice(_APIS),
                stream=rng.random() < 0.5,
                length=len(prompt.text),
            )
            outcome = await self._ask(client, asked, prompt)
            self._outcomes.append(outcome)
            if outcome.fate != "answered":
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def _ask(self, client: httpx.AsyncClient, asked: Asked, prompt: Prompt) -> Outcome:
        give_up = asyncio.Event()
        late = asyncio.get_running_loop().call_later(PATIENCE_S, give_up.set)
        try:
            return await request(client, self._url, asked, prompt, give_up=give_up, moment=_never)
        finally:
            late.cancel()


async def _never(_: Moment) -> None:
    await asyncio.Event().wait()


def now() -> float:
    """The clock of `Outcome`."""
    return time.monotonic()
