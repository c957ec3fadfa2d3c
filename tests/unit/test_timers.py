"""The chain of timers: which one ends a request first, and which pairs stand in the wrong order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.timers import TICK_S, Timer, broken, timers_of

T, W, B = (
    "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
)


def chain(**seconds: float | None) -> tuple[Timer, ...]:
    return tuple(Timer(letter, letter, letter, letter, value, is_default=False) for letter, value in seconds.items())


def wrong(*timers: Timer, client_s: float | None = None) -> set[str]:
    return {pair.inner.letter + pair.outer.letter for pair in broken(timers, client_s=client_s)}


def of_stack(**env: str) -> tuple[Timer, ...]:
    return (
        *timers_of("prefill-0", "prefill", env, ()),
        *timers_of("decode-0", "decode", env, ()),
        *timers_of("router", "router", {}, ("--request-timeout-secs", "600", "--retry-max-retries=1")),
    )


def test_the_defaults_and_the_profiles_are_whole() -> None:
    assert broken(of_stack()) == ()
    assert {timer.letter: timer.seconds for timer in of_stack()} == {
        "T": 120,
        "S": 120,
        "B": 300,
        "W": 300,
        "H": 10,
        "R": 600,
    }


@pytest.mark.parametrize(
    ("env", "pairs"),
    [
        ({T: "8"}, {"HT"}),
        ({T: "299"}, {"TW"}),
        ({W: "400"}, {"WB"}),
        ({B: "600", W: "100"}, {"TW", "BR"}),
        ({T: "0"}, {"TW"}),
        ({"SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT": "0"}, {"SR"}),
    ],
)
def test_each_pair_that_stands_wrong_is_named(env: dict[str, str], pairs: set[str]) -> None:
    assert wrong(*of_stack(**env)) == pairs
    for pair in broken(of_stack(**env)):
        assert pair.inner.worker in str(pair)
        assert pair.outer.set_by in str(pair)


def test_a_client_that_leaves_first_is_told_of() -> None:
    assert wrong(*of_stack(), client_s=300) == {"RC"}
    assert wrong(*of_stack(), client_s=700) == set()


def test_each_worker_of_a_role_has_its_own() -> None:
    decodes = [*timers_of("decode-0", "decode", {}, ()), *timers_of("decode-1", "decode", {W: "50"}, ())]
    found = broken([*timers_of("prefill-0", "prefill", {}, ()), *decodes])
    assert [pair.outer.worker for pair in found] == ["decode-1"]


def test_a_heartbeat_is_never_shorter_than_sglang_lets_it_be() -> None:
    env = {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "0.5", "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "3"}
    (timer,) = [timer for timer in timers_of("d", "decode", env, ()) if timer.letter == "H"]
    assert (timer.seconds, timer.is_default) == (6.0, False)


def test_a_value_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{T} is 'soon'"):
        timers_of("p", "prefill", {T: "soon"}, ())
    with pytest.raises(ValueError, match="--request-timeout-secs"):
        timers_of("r", "router", {}, ("--request-timeout-secs", "soon"))


SECONDS = st.none() | st.floats(0.1, 1e4)


@given(st.fixed_dictionaries(dict.fromkeys("HTWBRS", SECONDS)), st.floats(0, 1e4))
def test_a_whole_chain_stays_whole_when_its_outer_timers_grow(seconds: dict[str, float | None], more_s: float) -> None:
    before = wrong(*chain(**seconds))
    longer = {**seconds, "R": None if seconds["R"] is None else seconds["R"] + more_s}
    assert wrong(*chain(**longer)) <= before
    if not before and seconds["T"] is not None and seconds["W"] is not None:
        assert seconds["T"] + TICK_S < seconds["W"]
