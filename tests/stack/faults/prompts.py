"""Prompts whose answer hangs on all of their KV, and the one right text of each.

The tiny model continues a text with the byte that followed the most similar six bytes earlier on. A prompt here is
noise with a chain in it: each byte of the answer is written down in another place, behind the six bytes that ask for
it. Behind an entry stands a decoy, which also follows those six bytes as far as the next step can tell, and which loses
against the entry of that step only as long as that entry is intact: equal votes go to the smaller byte, and decoys are
larger. So wherever a stretch of KV is foreign, missing or late, an answer byte is a decoy or noise.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from serving.cpu.tiny_model import expected_answer

CONTEXT = 6
"""Bytes of context that the model compares."""

ENTRY = CONTEXT + 2
"""Bytes of an entry: the context, what follows it, the decoy."""

ANSWERS = "abcdefghijklm"
DECOYS = "nopqrstuvwxyz"
NOISE = ANSWERS + DECOYS + "0123456789"
LAST = ":"
"""What a prompt ends with, so that the chat template lets it go on as it is."""

MIN_LENGTH = 10


@dataclass(frozen=True)
class Prompt:
    """A text, one byte a token, and its greedy continuation."""

    text: str
    answer: str

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.answer)


@dataclass(frozen=True)
class Prefix:
    """The beginning that the prompts of a family share, and the six bytes that make an answer go through it."""

    text: str
    asks: str
    answer: str


def _noise(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(NOISE, k=length))


def _entries(rng: random.Random, chain: str) -> Iterator[str]:
    """One entry for each byte of `chain` behind the first six."""
    for at in range(CONTEXT, len(chain)):
        yield chain[at - CONTEXT : at + 1] + rng.choice(DECOYS)


def _spread(rng: random.Random, entries: list[str], length: int) -> str:
    """`length` bytes of noise with the entries in it, one in each equal part, in any order.

    Raises:
        ValueError: they do not fit.
    """
    if not entries:
        return _noise(rng, length)
    edges = [length * part // len(entries) for part in range(len(entries) + 1)]
    rng.shuffle(entries)
    text = ""
    for entry, begin, end in zip(entries, edges, edges[1:], strict=False):
        if end - begin < len(entry):
            raise ValueError(f"{len(entries)} entries do not fit into {length} bytes")
        before = rng.randint(0, end - begin - len(entry))
        text += _noise(rng, before) + entry + _noise(rng, end - begin - len(entry) - before)
    return text


def make_prefix(rng: random.Random, length: int, tokens: int) -> Prefix:
    """A shared beginning of `length` bytes, of which an answer of `tokens` bytes hangs.

    Raises:
        ValueError: it is too short for that.
    """
    asks = "".join(rng.choices(ANSWERS, k=CONTEXT))
    answer = "".join(rng.choices(ANSWERS, k=tokens))
    return Prefix(_spread(rng, list(_entries(rng, asks + answer)), length), asks, answer)


def make_prompt(rng: random.Random, length: int, tokens: int, prefix: Prefix | None = None) -> Prompt:
    """A prompt of `length` bytes, at least 10, with an answer of about `tokens` bytes.

    Its chain has as many steps as fit, `tokens` at most. Behind a `prefix` it goes through the prompt's own part and
    then through the prefix; a prefix that leaves no room for that is not used.

    Raises:
        ValueError: fewer than 10 bytes.
    """
    if length < MIN_LENGTH:
        raise ValueError(f"a prompt has at least {MIN_LENGTH} bytes, not {length}")
    end = "".join(rng.choices(ANSWERS, k=CONTEXT - 1)) + LAST
    shared = prefix.text if prefix is not None else ""
    own = length - len(shared) - CONTEXT
    onward = prefix.asks if prefix is not None else ""
    if prefix is not None and own // ENTRY < len(onward) + 1:
        return make_prompt(rng, length, tokens)
    steps = max(0, min(tokens, own // ENTRY) - len(onward))
    chain = end + "".join(rng.choices(ANSWERS, k=steps)) + onward
    text = shared + _spread(rng, list(_entries(rng, chain)), own) + end
    asked = max(4, len(chain) - CONTEXT + (len(prefix.answer) if prefix is not None else 0))
    return Prompt(text, expected_answer(text.encode(), asked).decode())


def probes(prompt: Prompt) -> Iterator[int]:
    """Where the entries of the answer stand in the text: the places on which each of its bytes hangs."""
    chain = prompt.text[-CONTEXT:] + prompt.answer
    for at in range(CONTEXT, len(chain)):
        found = prompt.text.find(chain[at - CONTEXT : at + 1])
        if found >= 0:
            yield found
