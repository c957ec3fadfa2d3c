"""watch-inflight on the running engine: at rest, with a canary that is held until the watchdog fires, and replayed."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dsv4ctl.procfs import descendants, processes
from tests.engine import HOST, Dsv4, StackProfile
from tests.held import Pair
from tests.stack.test_equality import check_equality

pytestmark = pytest.mark.stack

TIMEOUT_S = 10.0
"""Longer than it may take on a busy machine until the watch has begun."""
INTERVAL_S = 0.2
SLACK_S = 2.0


def lines(out: str) -> list[dict[str, Any]]:
    """The events of a jsonl answer."""
    return [document["event"] for line in out.splitlines() if "event" in (document := json.loads(line))]


def states(out: str) -> list[str]:
    return [verdict["state"] for event in lines(out) for verdict in event["verdicts"]]


def test_a_queue_at_rest_is_idle_and_seen_to_be(dsv4: Dsv4, shared: StackProfile) -> None:
    watched = dsv4.run("watch-inflight", shared.path, "--interval", "0.2", "--count", "5", "-o", "json")
    assert watched.code == 0, watched.err
    result = watched.document["result"]
    assert (result["outcome"], result["sources"], result["looks"], result["failed"]) == ("healthy", ["dsv4"], 5, 0)
    assert (result["pins"], result["fires"], result["doubts"]) == ([], [], [])


def test_a_held_canary_is_pinned_and_then_fired(dsv4: Dsv4, shared: StackProfile, tmp_path: Path) -> None:
    pair = Pair.of(shared)
    before = pair.figures(pair.prefill)["inflight_timeout_s"]
    assert pair.set_timeout(TIMEOUT_S)
    recording = tmp_path / "watch.jsonl"
    try:
        with ThreadPoolExecutor() as pool:
            held = pool.submit(pair.hold, "dsv4-hold-60-watched", stream=False)
            wanted = ("--until", "fired", "--interval", str(INTERVAL_S), "--duration", "30", "-o", "jsonl")
            watched = dsv4.run("watch-inflight", shared.path, *wanted, "--record", str(recording))
            held.result()
    finally:
        assert pair.set_timeout(before)
    assert watched.code == 1, watched.err
    seen = states(watched.out)
    assert "pinned" in seen
    assert seen[-1] == "fired"
    envelope = json.loads(watched.out.splitlines()[-1])
    ((pin,), (fire,)) = (envelope["result"]["pins"], envelope["result"]["fires"])
    assert pin["basis"] == "seen"
    assert TIMEOUT_S / 2 <= pin["oldest_s"] <= TIMEOUT_S + SLACK_S
    assert fire["request"] == "dsv4-hold-60-watched"
    assert TIMEOUT_S <= fire["age_s"] <= TIMEOUT_S + SLACK_S
    assert {finding["code"] for finding in envelope["findings"]} == {"PREFILL_PINNED", "PREFILL_FIRED"}

    replayed = dsv4.run("watch-inflight", "--replay", recording, "-o", "jsonl")
    assert replayed.code == 1
    assert states(replayed.out) == seen


def test_requests_that_flow_are_no_pin(dsv4: Dsv4, shared: StackProfile) -> None:
    with ThreadPoolExecutor() as pool:
        flow = pool.submit(check_equality, shared.url, None, lengths=(300, 4097, 1, 2000, 600))
        watched = dsv4.run("watch-inflight", shared.path, "--interval", "0.1", "--duration", "6", "-o", "jsonl")
        flow.result()
    assert watched.code == 0, watched.err
    assert set(states(watched.out)) <= {"idle", "flowing", "suspect"}
    assert "flowing" in states(watched.out)


def test_a_scheduler_that_stands_still_is_stale_and_neither_healthy_nor_pinned(
    dsv4: Dsv4, shared: StackProfile
) -> None:
    status = dsv4.run("status", shared.path, "-o", "json").document["result"]["workers"]
    table = processes(HOST)
    pids = descendants(table, [worker["pid"] for worker in status if worker["role"] == "prefill"])
    scheduler = next(pid for pid in sorted(pids) if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(scheduler, signal.SIGSTOP)
    try:
        watched = dsv4.run("watch-inflight", shared.path, "--interval", "0.5", "--duration", "13", "-o", "jsonl")
    finally:
        os.kill(scheduler, signal.SIGCONT)
    assert watched.code == 4, watched.err
    assert states(watched.out)[-1] == "stale"
    assert json.loads(watched.out.splitlines()[-1])["findings"][0]["code"] == "SOURCE_STALE"


def test_a_stack_without_prefill_has_no_such_queue(dsv4: Dsv4, shared: StackProfile, tmp_path: Path) -> None:
    del shared
    watched = dsv4.run("watch-inflight", "cpu-single")
    assert watched.code in (2, 3)
    watched = dsv4.run("watch-inflight", "--replay", tmp_path / "none")
    assert watched.code == 2
