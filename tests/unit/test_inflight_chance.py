"""The odds behind a verdict from counts: the formulas against what they say, by hand and by simulation."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.inflight.chance import chance_of_run, chance_of_shift, looks_needed, occupied_probability


@pytest.mark.parametrize(
    ("rho", "looks", "chance"), [(0.2, 9, 1e-6), (1.0, 31, 1e-6), (1.0, 16, 1e-3), (5.0, 1022, 1e-3)]
)
def test_with_much_history_a_run_is_as_likely_as_the_formula_says(rho: float, looks: int, chance: float) -> None:
    occupied = occupied_probability(rho)
    history = 10_000_000
    found = chance_of_run(looks, occupied=round(history * occupied), empty=round(history * (1 - occupied)))
    assert found == pytest.approx(occupied**looks, rel=0.05)
    assert found <= chance


def test_without_history_nothing_is_known() -> None:
    assert chance_of_run(3, occupied=0, empty=0) == pytest.approx(1 / 4)
    assert looks_needed(occupied=0, empty=0, chance=1e-6) == 999_999


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 60))
def test_more_history_of_an_empty_queue_and_a_longer_run_are_both_less_likely(
    occupied: int, empty: int, looks: int
) -> None:
    chance = chance_of_run(looks, occupied=occupied, empty=empty)
    assert 0 < chance < 1
    assert chance_of_run(looks + 1, occupied=occupied, empty=empty) < chance
    assert chance_of_run(looks, occupied=occupied, empty=empty + 1) < chance


@given(st.integers(0, 50), st.integers(1, 50), st.sampled_from([1e-2, 1e-3, 1e-6]))
def test_the_looks_that_are_needed_are_the_fewest_that_suffice(occupied: int, empty: int, chance: float) -> None:
    looks = looks_needed(occupied=occupied, empty=empty, chance=chance)
    assert looks is not None
    assert chance_of_run(looks, occupied=occupied, empty=empty) <= chance * (1 + 1e-9)
    if looks > 1:
        assert chance_of_run(looks - 1, occupied=occupied, empty=empty) > chance


def test_a_shift_is_as_rare_as_it_is_among_shuffled_values() -> None:
    rng = random.Random(1)
    values = list(range(7))
    rounds = 40_000
    hits = 0
    for _ in range(rounds):
        rng.shuffle(values)
        hits += min(values[:2]) > max(values[2:])
    assert hits / rounds == pytest.approx(chance_of_shift(2, 5), rel=0.1)
    assert chance_of_shift(2, 5) == 1 / math.comb(7, 2)
