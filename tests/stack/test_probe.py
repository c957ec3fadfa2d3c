"""`dsv4ctl probe` on the real stack: by halves, through the router, behind a bad proxy, with a decode that stopped."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dsv4ctl.procfs import descendants, processes
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, StackProfile
from tests.misbehaving_proxy import Mode, misbehaving_proxy

pytestmark = pytest.mark.stack

PAIR = "prefill-0+decode-0"


def probe(dsv4: Dsv4, profile: StackProfile, *words: str) -> tuple[int, Any]:
    done = dsv4.run("probe", profile.path, *words, "-o", "json")
    return done.code, done.document


def scheduler_of(dsv4: Dsv4, profile: StackProfile, worker: str) -> int:
    status = dsv4.run("status", profile.path, "-o", "json").document
    (leader,) = [each["pid"] for each in status["result"]["workers"] if each["name"] == worker]
    for pid in sorted(descendants(processes(HOST), [leader])):
        with suppress(OSError):
            if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise LookupError(f"{worker} has no scheduler")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that stands still for the length of a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_router_and_pair_answer_and_the_times_of_both_halves_are_there(dsv4: Dsv4, shared: StackProfile) -> None:
    code, document = probe(dsv4, shared)
    assert code == 0, document
    result = document["result"]
    assert [hop["hop"] for hop in result["hops"]] == ["router", PAIR]
    assert [exchange["reply"]["outcome"] for exchange in result["exchanges"]] == ["right"] * 4
    for exchange in result["exchanges"]:
        times = exchange["reply"]["times"]
        assert 0 < times["connect_s"] <= times["first_byte_s"] <= times["first_token_s"] <= times["last_byte_s"]
    prompts = [exchange["reply"]["prompt_tokens"] for exchange in result["exchanges"]]
    assert min(prompts) < 100
    assert max(prompts) > 5000
    for exchange in result["exchanges"]:
        if exchange["hop"] == PAIR:
            spent = exchange["prefill"]["engine_s"]
            assert spent["queue"] + spent["prefill"] + spent["after_prefill"] <= spent["total"] + 0.1


def test_conversations_grow_and_the_engine_closes_idle_connections_with_notice(
    dsv4: Dsv4, shared: StackProfile
) -> None:
    code, document = probe(dsv4, shared, "--rounds", "3", "--gaps", "0,6")
    assert code == 0, document
    result = document["result"]
    rounds = [exchange for exchange in result["exchanges"] if exchange["phase"] == "rounds"]
    assert len(rounds) == 2 * 2 * 3
    assert {exchange["reply"]["outcome"] for exchange in rounds} == {"right"}
    for hop in ("router", PAIR):
        sizes = [e["reply"]["prompt_tokens"] for e in rounds if e["hop"] == hop and e["kept"]]
        assert sizes == sorted(sizes)
        assert sizes[-1] > sizes[0] + 400
    (pair,) = [hop for hop in result["hops"] if hop["hop"] == PAIR]
    assert 4 < pair["idle_close_s"] < 6


def test_a_proxy_before_the_router_is_named_and_the_engine_is_not(dsv4: Dsv4, shared: StackProfile) -> None:
    with misbehaving_proxy(shared.router, Mode.STALL_REUSED) as proxy:
        words = ("--via", proxy.url, "--rounds", "4", "--gaps", "0", "--hang-after", "5")
        code, document = probe(dsv4, shared, *words)
    assert code == 1, document
    verdict = document["result"]["verdict"]
    assert (verdict["hops"], verdict["manner"]) == ([proxy.url], "fails on reused connections only")
    assert verdict["sentence"].startswith(f"The engine is not at fault: router and {PAIR} answered")
    assert [finding["code"] for finding in document["findings"]] == ["HOP_BREAKS_KEEPALIVE"]


def test_a_decode_whose_scheduler_stands_still_is_named(dsv4: Dsv4, shared: StackProfile) -> None:
    with stopped(scheduler_of(dsv4, shared, "decode-0")):
        code, document = probe(dsv4, shared, "--hang-after", "5")
    # The router may take a moment to believe in it again.
    wait_until(lambda: probe(dsv4, shared)[0] == 0, deadline_s=90, what="a stack that answers again", interval_s=2)
    assert code == 1, document
    verdict = document["result"]["verdict"]
    assert verdict["hops"] == [PAIR]
    assert not verdict["cleared"]
    assert verdict["sentence"].startswith("The engine is at fault: asked directly")
    assert "decode-0 does not answer /health_generate within 5 s" in verdict["sentence"]
    assert "prefill-0 answers it" in verdict["sentence"]
