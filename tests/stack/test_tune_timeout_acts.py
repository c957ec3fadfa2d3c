"""tune-timeout acts on the running engine: a fire that is seen, a change that is undone, and what is refused."""

import json
import random
import signal
from threading import Event, Thread

import httpx
import pytest

from tests.engine import Dsv4, StackProfile
from tests.held import Pair
from tests.stack.faults.prompts import make_prompt

pytestmark = pytest.mark.stack

SHORT_S = 5.0
"""Longer than the heartbeat of the CPU engine."""


def in_force(shared: StackProfile) -> tuple[float, float, float]:
    pair = Pair.of(shared)
    figures = pair.figures(pair.prefill)
    names = ("inflight_timeout_s", "inflight_standing_timeout_s", "inflight_lease_left_s")
    timeout_s, standing_s, left_s = (figures[name] for name in names)
    return timeout_s, standing_s, left_s


def asks_short_questions(url: str, over: Event, answers: list[bool]) -> None:
    """One after the other, until it is over; whether each was answered rightly."""
    rng = random.Random(5)
    with httpx.Client(timeout=60) as client:
        while not over.is_set():
            prompt = make_prompt(rng, rng.randint(10, 100), 3)
            body = {"text": prompt.text, "sampling_params": {"temperature": 0, "max_new_tokens": prompt.tokens}}
            reply = client.post(f"{url}/generate", json=body)
            answers.append(reply.status_code == httpx.codes.OK and reply.json()["text"] == prompt.answer)


def test_a_verification_sees_the_watchdog_fire_under_traffic_and_puts_all_back(
    dsv4: Dsv4, shared: StackProfile
) -> None:
    before = in_force(shared)
    over, answers = Event(), list[bool]()
    client = Thread(target=asks_short_questions, args=(shared.url, over, answers))
    client.start()
    try:
        done = dsv4.run(
            *("tune-timeout", shared.path, "--verify", "--verify-with", f"{SHORT_S:g}", "--yes", "-o", "json"),
            timeout_s=180,
        )
    finally:
        over.set()
        client.join(60)
    assert done.code == 0, done.err
    facts = {step["id"]: step["facts"] for step in done.document["result"]["steps"]}
    assert facts["shorten:prefill-0"]["standing_s"] == before[0]
    ((rid, age_s),) = facts["answer"]["ended_after_s"].items()
    assert SHORT_S <= age_s <= SHORT_S + 2
    assert f"rid={rid} " in facts["told:prefill-0"]["log"][0]
    assert facts["told:prefill-0"]["counter_rose_by"] == 1
    assert facts["clean"]["others"]["prefill-0"]["success"] > 0
    assert facts["clean"]["others"]["prefill-0"]["timeout"] == 0
    assert set(answers) == {True}
    assert in_force(shared) == before
    words = done.document["result"]["proven"]
    assert f"ended after {age_s:.1f} s with the timeout at {SHORT_S:g} s" in words
    assert f"{before[0]:g} s is in force again, read back" in words


def test_ctrl_c_in_a_verification_puts_all_back(dsv4: Dsv4, shared: StackProfile) -> None:
    before = in_force(shared)
    with dsv4.start(
        *("tune-timeout", shared.path, "--verify", "--verify-with", f"{SHORT_S:g}", "--yes", "-o", "jsonl")
    ) as verifying:
        assert verifying.stdout is not None
        for line in verifying.stdout:
            event = json.loads(line).get("event", {})
            if (event.get("step"), event.get("state")) == ("fires", "begin"):
                break
        assert in_force(shared)[:2] == (SHORT_S, before[0])
        status = dsv4.run("status", shared.path, "-o", "json")
        assert [finding["code"] for finding in status.document["findings"]] == ["TIMEOUT_ON_LEASE"]
        verifying.send_signal(signal.SIGINT)
        _, said = verifying.communicate(timeout=60)
    assert verifying.returncode == 130, said
    assert f"prefill-0 on local has {before[0]:g} s again, read back" in said
    assert in_force(shared) == before


def test_a_timeout_is_applied_written_and_undone(dsv4: Dsv4, shared: StackProfile) -> None:
    before, text = in_force(shared), shared.path.read_text()
    planned = dsv4.run("tune-timeout", shared.path, "--apply", "45", "--dry-run", "-o", "json")
    assert planned.code == 0, planned.err
    assert [step["id"] for step in planned.document["result"]["steps"]] == [
        *("lease:prefill-0", "soak", "remember", "keep:prefill-0", "record", "file"),
    ]
    assert (in_force(shared), shared.path.read_text()) == (before, text)
    for _ in range(2):
        done = dsv4.run("tune-timeout", shared.path, "--apply", "45", "--soak", "1", "--yes", "-o", "json")
        assert done.code == 0, done.err
        assert in_force(shared) == (45, 45, 0)
    assert done.document["result"]["applied"] is False
    assert "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT = 45" in shared.path.read_text()
    assert dsv4.run("status", shared.path).code == 0
    back = dsv4.run("tune-timeout", shared.path, "--undo", "--yes", "-o", "json")
    assert back.code == 0, back.err
    assert (in_force(shared), shared.path.read_text()) == (before, text)
    assert dsv4.run("tune-timeout", shared.path, "--undo", "--yes").code == 6


def test_what_is_undone_is_what_is_planned_where_the_profile_was_not_written(dsv4: Dsv4, shared: StackProfile) -> None:
    """The file is changed by hand between the two: it is left alone, and the record is put back all the same."""
    before, text = in_force(shared), shared.path.read_text()
    done = dsv4.run("tune-timeout", shared.path, "--apply", "45", "--soak", "0", "--yes")
    assert done.code == 0, done.err
    try:
        shared.path.write_text(shared.path.read_text().replace("TIMEOUT = 45", "TIMEOUT = 44"))
        back = dsv4.run("tune-timeout", shared.path, "--undo", "--yes")
        assert back.code == 0, back.err
        assert "the profile is left as it is" in back.err
    finally:
        shared.path.write_text(text)
    assert in_force(shared) == before
    assert dsv4.run("status", shared.path).code == 0


def test_what_breaks_the_chain_is_refused_with_both_timers(dsv4: Dsv4, shared: StackProfile) -> None:
    before = in_force(shared)
    for seconds, other in (("2", "HEARTBEAT"), ("299", "WAITING")):
        done = dsv4.run("tune-timeout", shared.path, "--apply", seconds, "--yes")
        assert done.code == 6
        assert "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT" in done.err
        assert other in done.err
    assert in_force(shared) == before


@pytest.mark.parametrize(
    "words",
    [
        ("--apply", "soon"),
        ("--apply", "0.1"),
        ("--apply", "60", "--verify"),
        ("--undo", "--verify"),
        ("--verify-with", "20"),
        ("--dry-run",),
        ("--soak", "5"),
        ("--apply", "60", "--window", "20"),
    ],
)
def test_a_command_line_that_contradicts_itself_is_refused(
    dsv4: Dsv4, shared: StackProfile, words: tuple[str, ...]
) -> None:
    assert dsv4.run("tune-timeout", shared.path, *words).code == 2
