"""Binomial tails against exact arithmetic, and what follows from them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.tuning.binomial import may_exceed, needed, probability_of_at_most, share_at_most


def exactly(most: int, of: int, share: Fraction) -> Fraction:
    terms = (math.comb(of, count) * share**count * (1 - share) ** (of - count) for count in range(most + 1))
    return sum(terms, Fraction())


@given(st.integers(1, 200), st.data())
def test_a_tail_is_what_exact_arithmetic_says(of: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(0, of))
    share = data.draw(st.fractions(Fraction(1, 10_000), Fraction(9_999, 10_000), max_denominator=10_000))
    assert probability_of_at_most(most, of, float(share)) == pytest.approx(float(exactly(most, of, share)), rel=1e-9)


@pytest.mark.parametrize(("quantile", "samples"), [(0.99, 299), (0.999, 2995)])
def test_so_many_samples_bound_a_quantile_and_one_less_does_not(quantile: float, samples: int) -> None:
    assert needed(quantile, 0.95) == samples
    assert may_exceed(samples, quantile, 0.95) == 0
    assert may_exceed(samples - 1, quantile, 0.95) is None


@given(st.integers(299, 200_000))
def test_one_more_that_exceeds_would_be_too_many(of: int) -> None:
    allowed = may_exceed(of, 0.99, 0.95)
    assert allowed is not None
    assert probability_of_at_most(allowed, of, 0.01) <= 0.05 * (1 + 1e-9)
    assert probability_of_at_most(allowed + 1, of, 0.01) > 0.05


@given(st.integers(1, 100_000), st.data())
def test_a_share_that_is_not_excluded_would_show_as_little(of: int, data: st.DataObject) -> None:
    seen = data.draw(st.integers(0, of - 1))
    share = share_at_most(seen, of, 0.95)
    assert seen / of < share < 1
    assert probability_of_at_most(seen, of, share) == pytest.approx(0.05, rel=1e-6)


def test_nothing_in_so_many_is_about_three_in_so_many() -> None:
    assert share_at_most(0, 3000, 0.95) == pytest.approx(3 / 3000, rel=0.01)
    assert share_at_most(0, 0, 0.95) == 1.0
    assert share_at_most(5, 5, 0.95) == 1.0
