"""The timeout, the held canary's lease and the memory of ended rooms: pure pieces of the inflight watchdog."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.inflight import hold, timeout
from serving.inflight.ended_rooms import EndedRooms


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
    try:
        taken = timeout.checked(value, "t")
    except timeout.BadTimeout:
        return
    assert math.isfinite(taken)
    assert taken == 0 or timeout.SHORTEST_S <= taken <= timeout.LONGEST_S


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


@pytest.mark.parametrize(
    ("value", "is_allowed"), [(None, False), ("", False), ("0", False), ("yes", False), ("1", True)]
)
def test_holding_is_off_unless_it_is_switched_on(value: str | None, is_allowed: bool) -> None:
    assert hold.allowed({} if value is None else {"SGLANG_DSV4_ALLOW_HOLD": value}) is is_allowed


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
