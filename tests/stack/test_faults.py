"""Faults against a running stack: a slice of what `make bench` does two hundred times, and the same on stock SGLang."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stack.faults.checks import failures, gauge_frozen_s, pinned_for_s
from tests.stack.faults.episodes import ask_further, run_episode
from tests.stack.faults.plan import Action, Fault, plan_episode
from tests.stack.faults.stack import ALL, FaultStack, Knobs, start_stack

pytestmark = pytest.mark.stack

FURTHER = 50
WATCHED_S = 10.0


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


def test_on_stock_sglang_the_same_fault_pins_requests_for_as_long_as_one_watches(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stack = start_stack(tmp_path_factory.mktemp("stock"), "faults-stock", Knobs(without=ALL))
    try:
        planned = plan_episode(5, "freeze-long", stack.knobs.timers)
        freeze, thaw = planned.actions
        watched = replace(planned, actions=(freeze, Action(thaw.deed, WATCHED_S)))
        evidence = asyncio.run(run_episode(stack, watched))
    finally:
        stack.close()
    assert evidence.done[0].hit
    assert pinned_for_s(evidence.loads) >= WATCHED_S - 1
    # Nobody has an answer while decode stands still, and SGLang's own gauge does not follow what happens meanwhile.
    thawed_s = evidence.done[1].at_s
    assert all(outcome.ended_s > thawed_s for outcome in evidence.outcomes)
    assert gauge_frozen_s(evidence) >= 3
