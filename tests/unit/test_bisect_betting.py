"""The stakes are fair: no evidence is worth more than nothing, on average, where the null holds."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.bisect.betting import (
    COLD,
    HOT,
    Beta,
    greatest_rising,
    log_evidence_alike,
    log_evidence_higher,
    log_likelihood,
    log_marginal,
    log_odds_hot,
    log_sum,
)
from dsv4ctl.bisect.verdicts import Tally

LAUNCHES = 12
RATES = st.floats(0, 1)
TALLIES = st.builds(Tally, st.integers(0, 8), st.integers(0, 8))


def chance(tally: Tally, rate: float) -> float:
    ways = math.comb(tally.launches, tally.symptoms)
    return ways * math.exp(log_likelihood(tally, rate))


def outcomes(launches: int) -> list[Tally]:
    return [Tally(symptoms, launches - symptoms) for symptoms in range(launches + 1)]


@pytest.mark.parametrize("prior", [HOT, COLD, Beta(3.0, 2.0)])
def test_the_chances_of_all_outcomes_sum_to_one(prior: Beta) -> None:
    whole = sum(
        math.comb(LAUNCHES, tally.symptoms) * math.exp(log_marginal(prior, tally)) for tally in outcomes(LAUNCHES)
    )
    assert whole == pytest.approx(1)


@given(st.lists(TALLIES, min_size=1, max_size=4), st.lists(RATES, min_size=4, max_size=4))
def test_no_rising_rates_are_likelier_than_the_greatest(tallies: list[Tally], rates: list[float]) -> None:
    likelihood = sum(log_likelihood(tally, rate) for tally, rate in zip(tallies, sorted(rates), strict=False))
    assert likelihood <= greatest_rising(tuple(tallies)) + 1e-9


@given(RATES, RATES)
def test_evidence_for_higher_is_worth_nothing_where_it_is_not(one: float, other: float) -> None:
    high, low = sorted((one, other))
    worth = sum(
        chance(first, high) * chance(second, low) * math.exp(log_evidence_higher(first, second))
        for first, second in itertools.product(outcomes(LAUNCHES), outcomes(LAUNCHES // 2))
    )
    assert worth <= 1 + 1e-9


@given(st.floats(0, 0.5), st.floats(0, 1))
def test_evidence_for_alike_is_worth_nothing_where_the_rates_are_apart(low: float, more: float) -> None:
    apart = 0.2
    least = max(low + apart, 2 * low)
    high = min(1.0, least + more * (1 - least))
    worth = sum(
        chance(first, high) * chance(second, low) * math.exp(log_evidence_alike(first, second, apart))
        for first, second in itertools.product(outcomes(LAUNCHES), outcomes(LAUNCHES // 2))
    )
    assert worth <= 1 + 1e-4


def test_evidence_grows_with_what_it_is_for() -> None:
    clean = Tally(0, 5)
    grown = [log_evidence_higher(Tally(symptoms, 0), clean) for symptoms in range(6)]
    assert grown == sorted(grown)
    assert log_evidence_alike(Tally(20, 20), Tally(20, 20), 0.2) > 0 > log_evidence_alike(Tally(9, 1), Tally(1, 9), 0.2)


def test_odds_go_by_the_rates_of_the_ends() -> None:
    often, never = Tally(9, 1), Tally(0, 10)
    assert log_odds_hot(Tally(2, 0), often, never) > 0 > log_odds_hot(Tally(0, 2), often, never)


def test_logs_are_summed_as_their_numbers() -> None:
    assert log_sum(math.log(2), math.log(3), -math.inf) == pytest.approx(math.log(5))
    assert log_sum(-math.inf, -math.inf) == -math.inf
