"""A client's wait is bounded when a worker dies or stands still: each case of docs/timeouts.md, with short timers."""

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from dsv4ctl.waiting import wait_until
from tests.stack.faults.plan import Timers
from tests.stack.faults.prompts import Prompt, make_prompt
from tests.stack.faults.stack import ROLES, FaultStack, Knobs, Role, start_stack

pytestmark = pytest.mark.stack

KNOBS = Knobs(timers=Timers(inflight_timeout_s=8.0, stall_timeout_s=6.0), lost_decode_grace_s=3.0)
HEARTBEATS_S = 2 * 2.0
"""Decode asks every 2 s on the CPU, and believes the second bad answer."""
NOTICED_S = 3.0 + 5.0
"""From the end of a limit to the client's answer: 3 s are promised, and a machine that runs tests may be busy."""
CLIENT_GIVES_UP_S = 90.0
LONG = 6000
"""Tokens of an answer that is not over before the fault."""


@dataclass(frozen=True)
class Answer:
    """What a client got: the status, None where the connection broke; text or error; when, on the monotonic clock."""

    status: int | None
    body: str
    at_s: float


def ask(stack: FaultStack, prompt: Prompt, *, stream: bool, tokens: int | None = None) -> Answer:
    """A request through the router, to its end."""
    sampling = {"temperature": 0, "max_new_tokens": tokens or prompt.tokens, "ignore_eos": tokens is not None}
    body = {"text": prompt.text, "sampling_params": sampling, "stream": stream}
    try:
        with httpx.stream("POST", f"{stack.url}/generate", json=body, timeout=CLIENT_GIVES_UP_S) as response:
            text = response.read().decode()
            return Answer(response.status_code, text, time.monotonic())
    except httpx.HTTPError as error:
        return Answer(None, repr(error), time.monotonic())


def prompts(seed: str, count: int) -> list[Prompt]:
    rng = random.Random(seed)
    return [make_prompt(rng, rng.randint(40, 600), 12) for _ in range(count)]


def queued(stack: FaultStack, role: Role, *names: str) -> int:
    """The sum of these queues of a worker, now."""
    loads = httpx.get(f"{stack.workers[role].url}/v1/loads?include=disagg,queues", timeout=10).json()["loads"]
    return sum(int(load["disaggregation"][name]) for load in loads for name in names)


def nothing_is_left(stack: FaultStack) -> bool:
    return not queued(stack, "prefill", "prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs") and not queued(
        stack, "decode", "decode_prealloc_queue_reqs", "decode_transfer_queue_reqs"
    )


def assert_answers_rightly(stack: FaultStack, count: int, seed: str) -> None:
    """These many requests, four at a time, each with its one right text; afterwards nothing is queued."""
    asked = prompts(seed, count)
    stack.wait_serving(asked[0].text, asked[0].answer)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: ask(stack, prompt, stream=False), asked))
    for prompt, answer in zip(asked, answers, strict=True):
        assert answer.status == httpx.codes.OK, answer
        assert f'"text":"{prompt.answer}"' in answer.body, (prompt, answer)
    wait_until(lambda: nothing_is_left(stack), deadline_s=10, what="empty queues on both workers")


def assert_ended(answers: list[Answer], within_s: float, since_s: float) -> None:
    """Each ended badly, and none later than it may."""
    for answer in answers:
        assert answer.at_s - since_s < within_s, (answer, since_s)
        # A stream that has begun is a 200, and says inside how it ended.
        assert answer.status != httpx.codes.OK or '"abort"' in answer.body, answer


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultStack]:
    """A stack with short timers, running. Each test leaves it so."""
    started = start_stack(tmp_path_factory.mktemp("bound"), "bound", KNOBS)
    yield started
    started.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as clients:
        yield clients


def both_kinds(
    pool: ThreadPoolExecutor, stack: FaultStack, seed: str, tokens: int | None = None
) -> list[Future[Answer]]:
    """Two requests, one as a stream."""
    return [
        pool.submit(ask, stack, prompt, stream=stream, tokens=tokens)
        for prompt, stream in zip(prompts(seed, 2), (False, True), strict=True)
    ]


def test_decode_killed_with_requests_in_flight(stack: FaultStack, pool: ThreadPoolExecutor) -> None:
    generating = both_kinds(pool, stack, "generating", LONG)
    wait_until(lambda: running(stack, "decode") == 2, deadline_s=30, what="two generations on decode")
    stack.signal_scheduler("decode", signal.SIGSTOP)
    began = time.monotonic()
    waiting = both_kinds(pool, stack, "waiting")
    wait_until(
        lambda: queued(stack, "prefill", "prefill_bootstrap_queue_reqs") == 2,
        deadline_s=KNOBS.timers.stall_timeout_s / 2,
        what="two requests that wait for decode",
    )
    stack.kill("decode")
    killed = time.monotonic()
    assert_ended([answer.result() for answer in generating], NOTICED_S, killed)
    assert_ended([answer.result() for answer in waiting], killed - began + KNOBS.lost_decode_grace_s + NOTICED_S, began)
    assert "no decode worker is alive" in stack.log("prefill").read_text()
    stack.start("decode")
    stack.wait_ready("decode")
    assert_answers_rightly(stack, 20, "after the restart")


@pytest.mark.parametrize(("role", "more_s"), [("decode", 0.0), ("prefill", HEARTBEATS_S)])
def test_a_scheduler_that_is_stopped(role: Role, more_s: float, stack: FaultStack, pool: ThreadPoolExecutor) -> None:
    stack.signal_scheduler(role, signal.SIGSTOP)
    began = time.monotonic()
    answers = [answer.result() for answer in both_kinds(pool, stack, f"{role} stopped")]
    stack.signal_scheduler(role, signal.SIGCONT)
    assert_ended(answers, KNOBS.timers.stall_timeout_s + more_s + NOTICED_S, began)
    assert "dsv4 scheduler stall rid=" in stack.log(role).read_text()
    assert_answers_rightly(stack, 8, f"after {role} went on")


def running(stack: FaultStack, role: Role) -> int:
    """The requests that a worker computes now."""
    loads = httpx.get(f"{stack.workers[role].url}/v1/loads", timeout=10).json()["loads"]
    return sum(int(load["num_running_reqs"]) for load in loads)


def test_nothing_died_on_the_way(stack: FaultStack) -> None:
    assert all(stack.alive(role) for role in ROLES)
