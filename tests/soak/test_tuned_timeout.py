"""The timeout that tune-timeout recommends under a mixed load ends no request of that load, and every pin in time."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

from tests.engine import Dsv4, StackProfile, write_profile
from tests.held import SLACK_S, Pair
from tests.stack.faults.prompts import make_prompt

pytestmark = [pytest.mark.stack, pytest.mark.timeout(3600)]

CLIENTS = 3
WINDOW_S = 600
REQUESTS = 2000
PINS = 3
LENGTHS = (10, *(100,) * 7, *(300,) * 6, 1000, 1000, 3000, 8000)
TOKENS = 3


@pytest.fixture(scope="module")
def dsv4(tmp_path_factory: pytest.TempPathFactory) -> Dsv4:
    return Dsv4(tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def stack(dsv4: Dsv4, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProfile]:
    more = "[env]\nSGLANG_DSV4_ALLOW_HOLD = 1"
    profile = write_profile(tmp_path_factory.mktemp("tuned"), "tuned", more=more, large_tokens=6000)
    assert dsv4.invoke("serve", "--detach", profile.path).code == 0
    yield profile
    assert dsv4.invoke("stop", "--yes", profile.path).code == 0


def client_of(url: str, seed: int, over: Event, most: int) -> Counter[str]:
    """Asks one request after the other until it is over, or so many are answered; how they ended."""
    rng = random.Random(f"tuned {seed}")
    fates: Counter[str] = Counter()
    with httpx.Client(timeout=300) as client:
        while not over.is_set() and sum(fates.values()) < most:
            prompt = make_prompt(rng, rng.choice(LENGTHS), TOKENS)
            sampling = {"temperature": 0, "max_new_tokens": prompt.tokens}
            reply = client.post(f"{url}/generate", json={"text": prompt.text, "sampling_params": sampling})
            right = reply.status_code == httpx.codes.OK and reply.json()["text"] == prompt.answer
            fates["right" if right else f"{reply.status_code}: {reply.text[:200]}"] += 1
    return fates


def test_the_recommended_timeout_ends_no_good_request_and_every_pin(dsv4: Dsv4, stack: StackProfile) -> None:
    over = Event()
    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(client_of, stack.url, seed, over, 10**9) for seed in range(CLIENTS)]
        tuned = dsv4.run("tune-timeout", stack.path, "--window", str(WINDOW_S), "-o", "json", timeout_s=WINDOW_S + 60)
        over.set()
        seen = sum((load.result() for load in loads), Counter[str]())
    assert tuned.code == 0, tuned.document["result"]["why_no_bound"]
    assert set(seen) == {"right"}
    recommended_s = tuned.document["result"]["recommended"]["seconds"]

    pair = Pair.of(stack)
    before = pair.figures(pair.prefill)
    assert pair.set_timeout(recommended_s)
    with ThreadPoolExecutor() as pool:
        each = REQUESTS // CLIENTS + 1
        loads = [pool.submit(client_of, stack.url, 10 + seed, Event(), each) for seed in range(CLIENTS)]
        pins = [pool.submit(pair.hold, f"dsv4-hold-300-tuned-{number}x", stream=False) for number in range(PINS)]
        ended = [pin.result() for pin in pins]
        after = sum((load.result() for load in loads), Counter[str]())
    bound = tuned.document["result"]["bound"]
    print(json.dumps({"bound": bound, "T": recommended_s, "pins_s": [one.seconds for one in ended]}))  # noqa: T201
    assert after == {"right": CLIENTS * each}
    assert pair.figures(pair.prefill)["watchdog_fires"] == before["watchdog_fires"] + PINS
    assert all("inflight timeout" in one.text for one in ended)
    assert all(recommended_s <= one.seconds <= recommended_s + SLACK_S for one in ended), ended
