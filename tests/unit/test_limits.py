"""What the environment may say of our limits and switches."""

import pytest

from serving import knobs, limits, settings
from serving.peers.watch import GRACE, GRACE_DEFAULT_S
from serving.settings import BadSetting
from serving.stall.watch import LIMIT, LIMIT_DEFAULT_S, SHOWN_EVERY_S

INFLIGHT = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
HOLD = "SGLANG_DSV4_ALLOW_HOLD"


@pytest.mark.parametrize(("text", "value"), [("5", 5.0), ("2", 2.0), ("86400", 86400.0), (" 7 ", 7.0), ("", 10.0)])
def test_a_number_of_seconds(text: str, value: float) -> None:
    assert limits.seconds(GRACE, 10.0, {GRACE: text}) == value


def test_absent_is_the_default() -> None:
    assert limits.seconds(GRACE, 10.0, {}) == 10.0


def test_zero_is_no_limit_where_there_may_be_none() -> None:
    assert [limits.said(name, {name: "0"}) for name in (INFLIGHT, LIMIT)] == [0.0, 0.0]


@pytest.mark.parametrize("name", limits.LIMITS)
@pytest.mark.parametrize("text", ["ten", "-1", "nan", "inf", "-inf", "1e400", "5s", "0.1", "86401", "0x10"])
def test_anything_else_ends_the_engine_with_a_sentence(name: str, text: str) -> None:
    with pytest.raises(SystemExit, match=rf"^dsv4: error: {name} must be .*from [\d.]+ to 86400 seconds, not "):
        limits.seconds(name, 10.0, {name: text})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (GRACE, "0", f"{GRACE} must be from 2 to 86400 seconds, not 0.0"),
        (GRACE, "1.9", f"{GRACE} must be from 2 to 86400 seconds, not 1.9"),
        (LIMIT, "2.9", f"{LIMIT} must be 0 (no limit) or from 3 to 86400 seconds, not 2.9"),
        (INFLIGHT, "0.4", f"{INFLIGHT} must be 0 (no limit) or from 0.5 to 86400 seconds, not 0.4"),
        (INFLIGHT, "60s", f"{INFLIGHT} must be 0 (no limit) or from 0.5 to 86400 seconds, not '60s'"),
    ],
)
def test_so_short_that_a_healthy_engine_would_reach_it(name: str, text: str, said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        limits.said(name, {name: text})
    assert str(refused.value) == said


def test_the_defaults_are_within_and_the_shortest_is_longer_than_a_healthy_silence() -> None:
    for name, default_s in ((GRACE, GRACE_DEFAULT_S), (LIMIT, LIMIT_DEFAULT_S), (INFLIGHT, 120.0)):
        assert limits.said(name, {name: knobs.OWN_KNOBS[name].default}) == default_s
    idle_s = 1.0  # SGLang's sleep when there is nothing to do
    assert limits.LIMITS[LIMIT].shortest_s >= 2 * (SHOWN_EVERY_S + idle_s)


@pytest.mark.parametrize("said", ["1", "true", "TRUE", "yes", "Y", "on", "On"])
def test_a_switch_is_on(said: str) -> None:
    assert settings.switch(HOLD, {HOLD: said})


@pytest.mark.parametrize("said", [None, "", "0", "false", "No", "n", "OFF"])
def test_a_switch_is_off(said: str | None) -> None:
    assert not settings.switch(HOLD, {} if said is None else {HOLD: said})


@pytest.mark.parametrize("said", ["2", " 1", "1 ", "ja", " ", "enabled", "-1", "1.0"])
def test_a_switch_that_says_neither_is_refused(said: str) -> None:
    with pytest.raises(BadSetting, match=f"^{HOLD} is {said!r}, and must be one of 1, true, yes, y, on, 0, "):
        settings.switch(HOLD, {HOLD: said})


@pytest.mark.parametrize("name", [*limits.LIMITS, *(n for n, own in knobs.OWN_KNOBS.items() if own.type == "bool")])
def test_all_of_ours_are_looked_at_before_an_engine_starts(name: str) -> None:
    knobs.check_ours({name: "0" if name != GRACE else "4"})
    with pytest.raises(BadSetting, match=name):
        knobs.check_ours({name: "soon"})


def test_every_number_of_ours_that_is_read_has_its_limits() -> None:
    read = {name for name, own in knobs.OWN_KNOBS.items() if own.type == "float"} & knobs.names_read_by_us()
    assert read == limits.LIMITS.keys()
