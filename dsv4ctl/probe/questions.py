"""Conversations that grow as an agent's do, and whose every right answer is known beforehand.

Each round hides a code in its message and asks for it at the end. The tiny model of the CPU profile goes by the six
characters before the next one, so the question ends in the number of the round, and no two codes share three letters or
five characters in a row; an instructed model reads it as a person would.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4ctl.errors import UsageError

Message = Mapping[str, str]

MAX_ROUNDS = 100
LONGEST_GAP_S = 3600.0
USUAL_GAPS = "0,4,6,60"
MAX_ANSWER_TOKENS = 48
_LETTERS = "bcdfghjkmnpqrstvwxz"
# fmt: off
_FILLER_WORDS = (
    "bridge", "carpet", "dozen", "engine", "forest", "gravel", "hammer", "island", "jacket", "kettle", "mirror",
)
# fmt: on


@dataclass(frozen=True)
class Question:
    """What is sent in one round, the whole conversation before it included, and what has to be in the answer."""

    messages: tuple[Message, ...]
    answer: str

    @property
    def characters(self) -> int:
        """How long all the messages are together."""
        return sum(len(message["content"]) for message in self.messages)


class Conversation:
    """One conversation. `grow` is how many characters a round adds, about, until it is `limit` characters long."""

    def __init__(self, rng: random.Random, *, grow: int, limit: int) -> None:
        self._rng = rng
        self._grow = grow
        self._limit = limit
        self._messages: tuple[Message, ...] = ()
        self._runs: set[str] = set()
        self._round = 0

    def ask(self) -> Question:
        """The next round's question.

        Raises:
            UsageError: more rounds than a conversation can have.
        """
        self._round += 1
        if self._round > MAX_ROUNDS:
            raise UsageError(f"a conversation has at most {MAX_ROUNDS} rounds")
        code = self._code()
        asked = f"Code {self._round}:"
        head = f"{asked} {code}\n"
        tail = f"Repeat code {self._round} and nothing else.\n{asked}"
        room = self._limit - sum(len(message["content"]) for message in self._messages)
        text = head + self._filler(min(self._grow, room) - len(head) - len(tail)) + tail
        self._messages = (*self._messages, {"role": "user", "content": text})
        return Question(self._messages, code)

    def hear(self, text: str) -> None:
        """What was answered becomes part of the conversation."""
        self._messages = (*self._messages, {"role": "assistant", "content": text})

    def _code(self) -> str:
        while True:
            letters = "".join(self._rng.sample(_LETTERS, 4))
            code = f"{letters}-{self._rng.randrange(1000, 10_000)}"
            runs = {letters[:3], letters[1:], *(code[at : at + 5] for at in range(5))}
            if not runs & self._runs:
                self._runs |= runs
                return code

    def _filler(self, characters: int) -> str:
        lines: list[str] = []
        number = 0
        while characters > 0:
            number += 1
            words = f"{self._rng.choice(_FILLER_WORDS)} {self._rng.choice(_FILLER_WORDS)}"
            lines.append(f"{number}. {words} {self._rng.randrange(10**6)}\n")
            characters -= len(lines[-1])
        return "".join(lines)


def body_of(
    model: str, messages: Sequence[Message], request: Mapping[str, object], *, stream: bool
) -> dict[str, object]:
    """The JSON of a chat completion; `request` is what this model needs besides, and wins."""
    body: dict[str, object] = {
        "model": model,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": MAX_ANSWER_TOKENS,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return {**body, **request, "stream": stream}


def gaps_of(text: str) -> tuple[float, ...]:
    """The gaps that `--gaps 0,4,6,60` names.

    Raises:
        UsageError: that is no list of seconds.
    """
    try:
        gaps = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--gaps {text}: not a list of seconds", hint="for example 0,4,6,60") from error
    if any(not 0 <= gap <= LONGEST_GAP_S for gap in gaps):
        raise UsageError(f"--gaps {text}: a gap lies between 0 and {LONGEST_GAP_S:g} s")
    return gaps
