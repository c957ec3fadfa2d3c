"""tune-timeout on the running engine: strata are counted and shown, a recording is evidence, and with too little of it
no number is named."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.cpu.tiny_model import VARIANTS
from tests.engine import Dsv4, StackProfile
from tests.held import Pair
from tests.stack.test_telemetry import Engine, ask, settled

pytestmark = pytest.mark.stack

COUNT = "dsv4_inflight_dwell_by_stratum_seconds_count"
MIB = 1 << 20
SHORT, LONG = 100, 3000


def arrived(shared: StackProfile) -> dict[str, float]:
    """How many requests have arrived since prefill was started, by stratum."""
    samples = Engine(f"http://127.0.0.1:{shared.ports[2]}").samples(COUNT)
    return {sample.labels["stratum"]: sample.value for sample in samples if sample.labels["ended"] == "arrived"}


def counted(shared: StackProfile, stratum: str, wanted: float) -> Callable[[], bool]:
    return lambda: arrived(shared)[stratum] >= wanted


def test_requests_are_counted_in_their_stratum_and_the_first_of_a_start_once(shared: StackProfile) -> None:
    """The canaries have proven this stack one after the other: the first of them had the connection made."""
    per_token = VARIANTS["tiny"].kv_bytes_per_token
    assert SHORT * per_token <= MIB < LONG * per_token <= 16 * MIB
    before = arrived(shared)
    assert before["first"] == 1
    for tokens, stratum in ((SHORT, "up_to_1MiB"), (LONG, "up_to_16MiB"), (SHORT, "up_to_1MiB")):
        wanted = arrived(shared)[stratum] + 1
        ask(shared.url, tokens)
        settled(f"a request in {stratum}", counted(shared, stratum, wanted))
    after = arrived(shared)
    assert {stratum: after[stratum] - count for stratum, count in before.items() if after[stratum] > count} == {
        "up_to_1MiB": 2,
        "up_to_16MiB": 1,
    }


def test_with_too_little_it_says_how_much_is_missing_and_names_no_number(dsv4: Dsv4, shared: StackProfile) -> None:
    with ThreadPoolExecutor() as pool:
        looking = pool.submit(dsv4.run, "tune-timeout", shared.path, "--window", "20", "-o", "json")
        while not looking.done():
            for tokens in (SHORT, LONG):
                ask(shared.url, tokens)
        done = looking.result()
    assert done.code == 5, done.err
    result = done.document["result"]
    assert (result["bound"], result["recommended"]) == (None, None)
    assert result["why_no_bound"]["missing"] > 0
    assert {timer["letter"] for timer in result["timers"]} == {"H", "T", "S", "W", "B", "R"}
    # Decode's own heartbeat of 2 s is set after its process was started, where nobody sees it from outside.
    told = {timer["letter"]: (timer["source"], timer["seconds"]) for timer in result["timers"]}
    assert {letter: told[letter] for letter in "HTWB"} == {
        "H": ("engine", 4.0),
        "T": ("engine", 60.0),
        "W": ("engine", 300.0),
        "B": ("engine", 300.0),
    }
    assert {told[letter][0] for letter in "SR"} == {"process"}
    strata: dict[str, Any] = {one["stratum"]: one for one in result["strata"]}
    assert strata["first"]["requests"] == 0
    for stratum in ("up_to_1MiB", "up_to_16MiB"):
        assert strata[stratum]["requests"] > 0
        assert strata[stratum]["why_no_bound"]["missing"] > 0
    assert sum(one["requests"] for one in result["strata"]) == result["requests"]


def test_a_recording_is_evidence(dsv4: Dsv4, shared: StackProfile, tmp_path: Path) -> None:
    recording = tmp_path / "watch.jsonl"
    options = ("--interval", "0.5", "--duration", "10", "--record", str(recording))
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(dsv4.run, "watch-inflight", shared.path, *options)
        asked = 0
        while not watching.done():
            ask(shared.url, SHORT)
            asked += 1
        assert watching.result().code == 0, watching.result().err
    done = dsv4.run("tune-timeout", shared.path, "--from", recording, "-o", "json")
    assert done.code == 5, done.err
    result = done.document["result"]
    (read,) = result["recordings"]
    assert 0 < read["requests"] == result["requests"] <= asked
    assert result["ended_early"] == 0
    assert dsv4.run("tune-timeout", shared.path, "--from", recording, "--from", recording).code == 2


def test_a_timeout_that_was_changed_on_the_running_engine_is_drift(dsv4: Dsv4, shared: StackProfile) -> None:
    pair = Pair.of(shared)
    assert pair.set_timeout(15)
    try:
        changed = dsv4.run("status", shared.path, "-o", "json")
    finally:
        assert pair.set_timeout(60)
    (finding,) = changed.document["findings"]
    assert (finding["code"], finding["evidence"]["planned"], finding["evidence"]["running"]) == (
        "CONFIG_DRIFT",
        "60",
        "15",
    )
    assert dsv4.run("status", shared.path, "-o", "json").document["findings"] == []
