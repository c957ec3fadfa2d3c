"""A decode worker that stands still while KV is on its way to it delays nothing for another one: on the real stack.

SGLang is given one transfer queue, so that two decode workers surely share it where nobody parts them.
"""

import os
import random
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from dsv4ctl.procfs import descendants, processes
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, StackProfile, write_profile
from tests.stack.faults.links import links_between, moved_bytes
from tests.stack.faults.prompts import Prompt, make_prompt
from tests.stack.faults.stack import SMALL_BUFFERS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

FROZEN_S = 10.0
ASKED = 5
TOKENS = 8
PATIENCE_S = 8.0


@dataclass(frozen=True)
class Two:
    """One prefill, two decode workers, and the pids of their schedulers."""

    profile: StackProfile
    prefill: int
    decodes: tuple[int, int]

    def ask(self, decode: int, prompt: Prompt, within_s: float) -> str | None:
        """The answer of one decode to a request that is asked by halves, as the router asks; None when none came."""
        _, _, prefill, bootstrap, *decodes = self.profile.ports
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap, "bootstrap_room": secrets.randbits(62)}
        sampling = {"temperature": 0, "max_new_tokens": prompt.tokens}
        body = {"text": prompt.text, "sampling_params": sampling, **room}
        urls = [f"http://127.0.0.1:{port}/generate" for port in (prefill, decodes[decode])]
        with ThreadPoolExecutor() as pool, httpx.Client(timeout=within_s) as client:
            _, answer = [pool.submit(client.post, url, json=body) for url in urls]
            try:
                return str(answer.result().json()["text"])
            except httpx.TimeoutException:
                return None


@contextmanager
def two_decodes(folder: Path, name: str, **env: str) -> Iterator[Two]:
    """A stack with one queue for transfers, served and ended."""
    mine = Dsv4(folder / "state")
    told = {**SMALL_BUFFERS, "SGLANG_DISAGGREGATION_QUEUE_SIZE": "1", **env}
    lines = "".join(f'{key} = "{value}"\n' for key, value in told.items())
    more = f"[env]\n{lines}"
    profile = write_profile(folder, name, extends="cpu-kv-heavy", decode=2, more=more)
    served = mine.run("serve", "--detach", profile.path, timeout_s=300)
    assert served.code == 0, served.err
    try:
        workers = mine.run("status", profile.path, "-o", "json").document["result"]["workers"]
        table = processes(HOST)

        def scheduler(worker: str) -> int:
            pids = descendants(table, [entry["pid"] for entry in workers if entry["name"] == worker])
            return next(pid for pid in sorted(pids) if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes())

        yield Two(profile, scheduler("prefill-0"), (scheduler("decode-0"), scheduler("decode-1")))
    finally:
        assert mine.run("stop", "--yes", profile.path).code == 0


def answered_meanwhile(two: Two, seed: str) -> int:
    """How many of ASKED requests the second decode answers rightly while the first is frozen in a transfer."""
    rng = random.Random(seed)
    for decode in (0, 1):
        prompt = make_prompt(rng, 64, TOKENS)
        assert two.ask(decode, prompt, 30.0) == prompt.answer
    with ThreadPoolExecutor() as pool:
        pool.submit(two.ask, 0, make_prompt(rng, 6000, TOKENS), 60.0)
        links = links_between(two.prefill, two.decodes[0])
        before = moved_bytes(links)
        wait_until(lambda: moved_bytes(links) - before > 20_000, deadline_s=20, what="KV on its way", interval_s=0.002)
        os.kill(two.decodes[0], signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            prompts = [make_prompt(rng, rng.randint(20, 200), TOKENS) for _ in range(ASKED)]
            right = sum(two.ask(1, prompt, PATIENCE_S) == prompt.answer for prompt in prompts[:1])
            for prompt in prompts[1:]:
                if right:
                    right += two.ask(1, prompt, PATIENCE_S) == prompt.answer
            wait_until(lambda: time.monotonic() > stopped + FROZEN_S, deadline_s=FROZEN_S + 1, what="the thaw")
        finally:
            os.kill(two.decodes[0], signal.SIGCONT)
    return right


def test_a_frozen_decode_delays_no_other_one(tmp_path: Path) -> None:
    with two_decodes(tmp_path, "two") as two:
        assert answered_meanwhile(two, "parted") == ASKED


def test_where_nobody_parts_them_it_does(tmp_path: Path) -> None:
    with two_decodes(tmp_path, "shared-queue", SGLANG_DSV4_DISABLE_PATCHES="queue-per-decode") as two:
        assert answered_meanwhile(two, "shared") == 0
