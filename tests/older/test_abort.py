"""SGLang 0.5.15 with a client that hangs up in the middle of its prompt: as it is, and patched."""

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine_process import answer
from tests.older import stack
from tests.older.stack import OlderStack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

PATCHES = ("abort-message", "control-threads", "sticky-status", "transfer-worker")
SPEECHLESS_S = 8.0
AFTERWARDS = 20


def green(older: OlderStack) -> dict[str, int]:
    """What every health endpoint of the stack answers."""
    with httpx.Client(timeout=10) as client:
        return {
            path: client.get(path).status_code
            for path in (
                f"{older.prefill_url}/health",
                f"{older.decode_url}/health",
                f"{older.profile.url}/health",
            )
        }


def test_as_it_is_one_client_that_hangs_up_ends_all_service(tmp_path: Path) -> None:
    rng = random.Random(15)
    before, given_up, *afterwards = stack.prompts(rng, [40, stack.LONG_TOKENS, *[40] * AFTERWARDS])
    with stack.running(tmp_path, "older-stock", SGLANG_DSV4_DISABLE_PATCHES="all") as older, httpx.Client() as client:
        assert stack.ask(client, older.profile.url, before, within_s=120) == before.answer
        held = stack.give_up_between_chunks(older, given_up)
        # Decode may take a request or two before it says that the other one was given up.
        left = iter(afterwards)
        while stack.ask(client, older.profile.url, next(left), within_s=SPEECHLESS_S) is not None:
            pass
        more = [stack.ask(client, older.profile.url, next(left), within_s=SPEECHLESS_S) for _ in range(2)]
        assert more == [None, None], f"hung up when prefill held {held} tokens"
        assert set(green(older).values()) == {200}
        assert "First message should be b'NixlMsgGuard'. Foreign traffic?" in older.log("prefill-0")
        # Nothing comes as far as the inflight queue, and that is what is said of it.
        assert watched(older) == (0, ["loads"], 0)


def test_patched_it_serves_on(tmp_path: Path) -> None:
    rng = random.Random(15)
    before, *given_up = stack.prompts(rng, [40, *[stack.LONG_TOKENS] * 4])
    afterwards = stack.prompts(rng, [rng.choice((3, 40, 300, 1500)) for _ in range(AFTERWARDS)])
    with stack.running(tmp_path, "older-patched", SGLANG_DSV4_PATCH_POLICY="warn") as older, httpx.Client() as client:
        assert stack.ask(client, older.profile.url, before, within_s=120) == before.answer
        for prompt in given_up:
            stack.give_up_between_chunks(older, prompt)
        for prompt in afterwards:
            assert stack.ask(client, older.profile.url, prompt, within_s=120) == prompt.answer
        assert is_idle(client, older.prefill_url)
        assert is_idle(client, older.decode_url)
        assert watched(older) == (0, ["loads"], 0)
        log = older.log("prefill-0")
        assert "dsv4: ABORT for room" in log
        assert "Foreign traffic?" not in log


def watched(older: OlderStack) -> tuple[int, list[str], int]:
    """What watch-inflight says of this version's queue: its exit code, by which source, how many looks failed."""
    seen = older.dsv4.run("watch-inflight", older.profile.path, "--count", "4", "-o", "json")
    result = seen.document["result"]
    return seen.code, result["sources"], result["failed"]


def is_idle(client: httpx.Client, url: str, *, within_s: float = 30) -> bool:
    """Whether a worker comes to hold nothing."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if stack.used_tokens(client, url) == 0:
            return True
        time.sleep(0.5)
    return False


def test_the_patches_of_this_version_apply() -> None:
    done = subprocess.run(
        [str(stack.PYTHON), "-m", "serving", "patches", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    statuses = {patch["name"]: patch["status"] for patch in said["patches"]}
    assert {name: statuses[name] for name in PATCHES} == dict.fromkeys(PATCHES, "applied")


def test_a_room_that_failed_is_revived_as_it_is_and_stays_failed_patched() -> None:
    said = answer("status_properties", python=str(stack.PYTHON))
    assert said["sglang"] == stack.VERSION
    for case in ("CommonKVManager", "NixlKVManager", "MooncakeKVManager"):
        assert said["stock"][case]["one thread"]["failed_stays"]
        assert said["stock"][case]["one thread"]["gone_stays"]
        assert not any(said["patched"][case].values()), said["patched"]


def test_the_threads_die_as_they_are_and_go_on_patched() -> None:
    stock, patched = (answer("transfer_threads", arm, python=str(stack.PYTHON)) for arm in ("stock", "patched"))
    assert not stock["NIXL prefill"]["an abort"]
    assert all(all(works.values()) for thread, works in patched.items() if thread != "sglang"), patched
