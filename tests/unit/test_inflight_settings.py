"""The timeout, the held canary's lease and the memory of ended rooms: pure pieces of the inflight watchdog."""

import dataclasses
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.inflight import hold, timeout
from serving.inflight.ended_rooms import EndedRooms
from serving.limits import LIMITS
from serving.patches import registry
from serving.settings import BadSetting

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("text", "seconds"), [(None, 120.0), ("", 120.0), ("0", 0.0), ("4", 4.0), ("86400", 86400.0)])
def test_a_timeout_is_read(text: str | None, seconds: float) -> None:
    environment = {} if text is None else {"SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": text}
    assert timeout.from_environment(environment) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "0.1", "86401", "1e9"])
def test_a_bad_timeout_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(timeout.BadTimeout, match="SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT must be"):
        timeout.from_environment({"SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": text})


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=5), st.none()))
def test_whatever_is_asked_for_is_taken_or_refused(value: object) -> None:
    limit = LIMITS[timeout.VARIABLE]
    try:
        taken = timeout.checked(value, "t")
    except timeout.BadTimeout:
        return
    assert math.isfinite(taken)
    assert taken == 0 or limit.shortest_s <= taken <= limit.longest_s


AS_SGLANG_READS_IT = """
import json, sys
from pydantic import TypeAdapter
from sglang.srt.managers.io_struct import SetInternalStateReq
request = TypeAdapter(SetInternalStateReq)
for said in json.load(sys.stdin):
    taken = request.validate_python({"server_args": {"dsv4_prefill_inflight_timeout": said}})
    print(repr(taken.server_args["dsv4_prefill_inflight_timeout"]))
"""


@pytest.mark.timeout(300)  # ten seconds of imports, on a busy machine minutes
def test_sglang_makes_a_number_of_what_is_posted_before_it_is_looked_at() -> None:
    """So true, false and a number in quotes cannot be told from 1, 0 and the number, and are taken for these."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AS_SGLANG_READS_IT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "serving" / "cpu" / "standins"), "SGLANG_USE_CPU_ENGINE": "1"},
        input=json.dumps([True, False, "5", 0.1]),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout.split() == ["1", "0", "5", "0.1"], done.stderr
    assert [timeout.checked(value, "t") for value in (1, 0, 5)] == [1.0, 0.0, 5.0]
    with pytest.raises(timeout.BadTimeout):
        timeout.checked(0.1, "t")


@pytest.mark.parametrize(
    ("rid", "lease"),
    [
        ("dsv4-hold-30-x", 30.0),
        ("dsv4-hold-30", 30.0),
        ("dsv4-hold-", 60.0),
        ("dsv4-hold-x", 60.0),
        ("dsv4-hold-30x", 60.0),
        ("dsv4-hold-99999-x", 1800.0),
        ("x-dsv4-hold-30", None),
        ("0123abcd", None),
    ],
)
def test_a_canary_asks_by_its_id(rid: str, lease: float | None) -> None:
    assert hold.lease_of(rid) == lease


@pytest.mark.parametrize("value", [None, "", "0", "no", "off", "yes", "1", "true", "TRUE", "y", "on", "2", " 1"])
def test_a_canary_is_known_exactly_where_one_is_held(value: str | None) -> None:
    """By the same reader: the patch that holds it, and the watchdog, which gives it its lease."""
    environment = {} if value is None else {"SGLANG_DSV4_ALLOW_HOLD": value}
    (patch,) = (patch for patch in registry.discover() if patch.name == "held-canary")

    def is_applied() -> bool:
        alone = dataclasses.replace(patch, relies_on=())
        (standing,) = registry.judge_all(environment, [alone], registry.installed_version())
        return standing.status == "applied"

    if value in ("2", " 1"):
        for ask in (is_applied, lambda: hold.allowed(environment)):
            with pytest.raises(BadSetting):
                ask()
    else:
        assert is_applied() is hold.allowed(environment) is (value in ("yes", "1", "true", "TRUE", "y", "on"))


@given(st.integers(0, 10_000))
def test_ended_rooms_are_bounded_and_keep_their_first_reason(seed: int) -> None:
    rng = random.Random(seed)
    rooms = EndedRooms(kept_s=100.0, kept_rooms=5)
    model: dict[int, tuple[float, str]] = {}
    now = 0.0
    for _ in range(50):
        now += rng.choice([0.0, 1.0, 60.0])
        room = rng.randrange(10)
        if rng.random() < 0.2:
            rooms.forget(room)
            model.pop(room, None)
        else:
            rooms.add(room, f"at {now}", now)
            model = {known: ended for known, ended in model.items() if now - ended[0] <= 100.0}
            model.setdefault(room, (now, f"at {now}"))
            model = dict(list(model.items())[-5:])
        assert {room: rooms.reason(room) for room in range(10)} == {
            room: model.get(room, (0.0, None))[1] for room in range(10)
        }
        assert len(rooms) <= 5
