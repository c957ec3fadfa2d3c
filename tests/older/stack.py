"""The disaggregated stack on SGLang 0.5.15, and what clients do to it."""

import http.client
import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from serving.cpu.tiny_model import expected_answer
from tests.engine import Dsv4, StackProfile, write_profile

VERSION = "0.5.15"
PYTHON = Path(__file__).resolve().parents[2] / ".venv-older" / "bin" / "python"
CHUNK_TOKENS = 512
# SGLang looks every 4 s whether the client of an answer in one piece is still there: prefill takes longer for this.
LONG_TOKENS = 12_000
ANSWER_TOKENS = 16

# What differs from the profile for the pinned version: 0.5.15 has no such flag; it takes memory that other processes
# took while it loaded for its weights, and with 0.05 has none left for KV; small chunks leave time in between.
DIFFERENCES = f"""
without = ["decode.args.disaggregation-decode-retraction-backup"]
[engine]
version = "{VERSION}"
python = "{PYTHON}"
[args]
mem-fraction-static = 0.5
[canary]
large_tokens = {3 * CHUNK_TOKENS}
deadline_s = 240
[prefill.args]
chunked-prefill-size = {CHUNK_TOKENS}
"""


@dataclass(frozen=True)
class OlderStack:
    """A running one."""

    profile: StackProfile
    dsv4: Dsv4

    @property
    def prefill_url(self) -> str:
        return f"http://127.0.0.1:{self.profile.ports[2]}"

    @property
    def decode_url(self) -> str:
        return f"http://127.0.0.1:{self.profile.ports[4]}"

    def log(self, worker: str) -> str:
        """All that a worker has written since it was started."""
        said = self.dsv4.run("logs", worker, "-p", self.profile.path, "-n", "100000")
        assert said.code == 0, said.err
        return said.out


@contextmanager
def running(folder: Path, name: str, **environment: str) -> Iterator[OlderStack]:
    """Start it with these variables for its engines, and stop it."""
    profile = write_profile(folder, name, more=DIFFERENCES)
    dsv4 = Dsv4(folder / "state")
    settings = [part for key, value in environment.items() for part in ("--set", f"{key}={value}")]
    served = dsv4.run("serve", "--detach", *settings, profile.path, timeout_s=480)
    try:
        assert served.code == 0, served.err
        yield OlderStack(profile, dsv4)
    finally:
        stopped = dsv4.run("stop", "--yes", profile.path)
        assert stopped.code in (0, 3), stopped.err


@dataclass(frozen=True)
class Prompt:
    """A text of one byte a token, and the answer that follows from it."""

    text: bytes

    @property
    def answer(self) -> bytes:
        return expected_answer(self.text, ANSWER_TOKENS)

    @property
    def body(self) -> dict[str, Any]:
        """The request."""
        return {
            "input_ids": list(self.text),
            "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True},
        }


def prompts(rng: random.Random, lengths: list[int]) -> list[Prompt]:
    """One of each length, none like another, so that no prefix is found in a cache."""
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(200)]
    return [Prompt(" ".join(rng.choices(words, k=length))[:length].encode()) for length in lengths]


def ask(client: httpx.Client, url: str, prompt: Prompt, *, within_s: float) -> bytes | None:
    """The answer's bytes; None if there was none within the time.

    Raises:
        httpx.HTTPStatusError: the stack refused.
    """
    try:
        reply = client.post(f"{url}/generate", json=prompt.body, timeout=within_s)
    except httpx.TimeoutException:
        return None
    reply.raise_for_status()
    return bytes(reply.json()["output_ids"])


def used_tokens(client: httpx.Client, url: str) -> int:
    """How many tokens of KV a worker holds for requests now."""
    reply = client.get(f"{url}/v1/loads", timeout=10)
    reply.raise_for_status()
    return int(sum(load["num_used_tokens"] for load in reply.json()["loads"]))


def give_up_between_chunks(stack: OlderStack, prompt: Prompt, *, within_s: float = 120) -> int:
    """Ask, and hang up once prefill has computed a part of the prompt; returns how many tokens it held then.

    Raises:
        TimeoutError: prefill was not seen in the middle of the prompt.
    """
    connection = http.client.HTTPConnection("127.0.0.1", stack.profile.router, timeout=within_s)
    connection.request("POST", "/generate", json.dumps(prompt.body), {"Content-Type": "application/json"})
    assert connection.sock is not None
    # Reset, and not closed: a client that was killed.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + within_s
    with httpx.Client() as client:
        while time.monotonic() < deadline:
            held = used_tokens(client, stack.prefill_url)
            if CHUNK_TOKENS <= held < len(prompt.text):
                connection.close()
                return held
    raise TimeoutError(f"prefill was not seen in the middle of a prompt within {within_s:.0f} s")
