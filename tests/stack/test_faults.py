"""Faults against a running stack: a slice of what `make bench` does two hundred times, and the same on stock SGLang."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stack.faults.checks import failures, gauge_frozen_s, pinned_for_s
from tests.stack.faults.episodes import Evidence, ask_further, run_episode
from tests.stack.faults.plan import Action, Fault, plan_episode
from tests.stack.faults.stack import ALL, FaultStack, Knobs, start_stack

pytestmark = pytest.mark.stack

FURTHER = 50
WATCHED_S = 10.0
STALE_S = 3.0
STOCK_SEEDS = (5, 18, 31, 44)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultStack]:
    """A stack with all patches; the episodes leave it as they found it."""
    stack = start_stack(tmp_path_factory.mktemp("patched"), "faults", Knobs())
    yield stack
    stack.close()


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        (3, "freeze-during"),
        (5, "freeze-long"),
        (10, "abort-50"),
        (11, "held"),
        (14, "refill"),
        (12, "lose-links"),
        (15, "clock-step"),
        (6, "kill-decode"),
    ],
)
def test_no_wrong_answer_nobody_waits_and_nothing_is_left(patched: FaultStack, seed: int, fault: Fault) -> None:
    evidence = asyncio.run(run_episode(patched, plan_episode(seed, fault, patched.knobs.timers)))
    assert failures(evidence, timeout_s=patched.knobs.timers.inflight_timeout_s) == ()


def test_the_stack_serves_on_after_all_of_them(patched: FaultStack) -> None:
    assert asyncio.run(ask_further(patched, FURTHER)) == FURTHER


def frozen_for_as_long_as_one_watches(stack: FaultStack, seed: int) -> Evidence:
    """An episode whose decode stands still while KV moves, and whose clients wait for as long as is watched."""
    planned = plan_episode(seed, "freeze-long", stack.knobs.timers)
    freeze, thaw = planned.actions
    asked = tuple(replace(one, closes_after_s=WATCHED_S) for one in planned.asked)
    still = Action(thaw.deed, WATCHED_S + 2 * STALE_S + 3.0)
    evidence = asyncio.run(run_episode(stack, replace(planned, asked=asked, actions=(freeze, still))))
    assert evidence.done[0].hit
    assert [outcome.fate for outcome in evidence.outcomes] == ["went away"] * len(asked)
    return evidence


def test_on_stock_sglang_the_same_fault_pins_requests_for_as_long_as_one_watches(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stack = start_stack(tmp_path_factory.mktemp("stock"), "faults-stock", Knobs(without=ALL))
    try:
        # A transfer whose last bytes were in the sockets when decode stopped is over for prefill, and what decode had
        # not asked for by then waits in another queue: such a blow shows no pin, and another is struck.
        for seed in STOCK_SEEDS:
            evidence = frozen_for_as_long_as_one_watches(stack, seed)
            if pinned_for_s(evidence.loads) > 0:
                break
    finally:
        stack.close()
    assert pinned_for_s(evidence.loads) >= WATCHED_S - 2
    # The clients are gone, their requests with them, and SGLang's own gauge still has them.
    assert gauge_frozen_s(evidence) >= STALE_S
