"""The parts of a search by themselves: what is launched next, what is minimal, what is shown."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.bisect.choose import most_informative
from dsv4ctl.bisect.confirm import Confirmation, Confirmed, confirm, contrasts
from dsv4ctl.bisect.cost import expected_cost
from dsv4ctl.bisect.ends import LIKELY, Ends, compare_ends, judged
from dsv4ctl.bisect.minimize import minimize
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.posterior import Singles
from dsv4ctl.bisect.verdicts import Record, Result, Steps, Tally, Verdict
from dsv4ctl.bisect.words import rate_of

OPTIONS = Options()
ALL = 0xFFFF
EQUAL = dict.fromkeys(range(16), 1.0)


def run(steps: Steps[Result], shows: Callable[[int], bool]) -> tuple[Result, list[int]]:
    """What a phase returns, and the sets it launched."""
    launched = []
    try:
        ask = next(steps)
        while True:
            launched.append(ask.subset)
            ask = steps.send(Verdict.SYMPTOM if shows(ask.subset) else Verdict.CLEAN)
    except StopIteration as stop:
        return stop.value, launched


def differing() -> Record:
    return Record({0: Tally(0, 6), ALL: Tally(6, 0)})


def test_half_of_what_is_equally_likely_is_launched_first() -> None:
    subset = most_informative(Singles(differing(), ALL, EQUAL).shares(), ALL, ())
    assert subset is not None
    assert 6 <= subset.bit_count() <= 10


def test_neither_an_end_nor_what_cannot_be_launched_is_chosen() -> None:
    shares = Singles(differing(), 0b11, {0: 1.0, 1: 1.0}).shares()
    assert most_informative(shares, 0b11, ()) in (0b01, 0b10)
    assert most_informative(shares, 0b11, {0b01, 0b10}) is None


def test_the_likeliest_unit_is_in_all_that_showed_it() -> None:
    record = differing()
    record.tallies |= {0b1111: Tally(3, 0), 0b1100: Tally(0, 3), 0b0101: Tally(3, 0)}
    shares = Singles(record, ALL, EQUAL).shares()
    assert shares.ranked()[0] == 0
    assert sum(shares.unit.values()) + shares.several + shares.none == pytest.approx(1)


def test_a_pair_is_seen_where_no_single_unit_fits() -> None:
    record = differing()
    record.tallies |= {0b0011: Tally(8, 0), ALL & ~0b0001: Tally(0, 8), ALL & ~0b0010: Tally(0, 8)}
    singles = Singles(record, ALL, EQUAL)
    assert singles.shares().several > 0.9
    pair, probability = singles.likeliest_pair()
    assert (pair, probability > 0.6) == (0b0011, True)
    assert set(singles.order()[:2]) == {0, 1}


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 10), st.data())
def test_delta_debugging_finds_what_is_minimal_within_its_bound(units: int, data: st.DataObject) -> None:
    bad = (1 << units) - 1
    culprits = data.draw(st.lists(st.integers(1, bad), min_size=1, max_size=3))

    def shows(subset: int) -> bool:
        return any(culprit & ~subset == 0 for culprit in culprits)

    record = Record({0: Tally(0, 6), bad: Tally(6, 0)})
    found, launched = run(minimize(record, bad, data.draw(st.permutations(range(units))), 0.05), shows)
    assert shows(found)
    assert not any(shows(found & ~(1 << unit)) for unit in range(units) if found >> unit & 1)
    assert len(set(launched)) <= units**2 + 3 * units


def test_ends_are_launched_in_turn_until_they_are_judged() -> None:
    found, launched = run(compare_ends(Record(), ALL, random.Random(1), OPTIONS, OPTIONS.log_needed), bool)
    assert found is Ends.DIFFER
    assert abs(launched.count(0) - launched.count(ALL)) <= 1
    assert launched != sorted(launched)


def test_ends_are_judged_by_what_was_launched() -> None:
    assert judged(Record({0: Tally(0, 3), ALL: Tally(1, 3)}), ALL, OPTIONS, OPTIONS.log_needed) is None
    assert judged(Record({0: Tally(0, 4), ALL: Tally(0, 14)}), ALL, OPTIONS, LIKELY) is Ends.NOT_SHOWN
    assert judged(Record({0: Tally(30, 30), ALL: Tally(30, 30)}), ALL, OPTIONS, LIKELY) is Ends.ALIKE
    assert judged(Record({0: Tally(1, 9), ALL: Tally(9, 1)}), ALL, OPTIONS, OPTIONS.log_needed) is Ends.DIFFER


def confirmed(record: Record, subset: int, shows: Callable[[int], bool]) -> tuple[Confirmed, list[int]]:
    confirmation = Confirmation(record, subset, ALL, OPTIONS.log_needed)
    return run(confirm(confirmation, record, random.Random(1), 0.8, ["it"], longest=None), shows)


def test_a_culprit_is_confirmed_both_ways() -> None:
    what, launched = confirmed(differing(), 1, lambda subset: bool(subset & 1))
    assert what is Confirmed.BOTH
    assert {1, ALL & ~1} <= set(launched)


@pytest.mark.parametrize(
    ("subset", "shows", "what"),
    [
        (1, lambda subset: bool(subset & 2), Confirmed.NOT_ALONE),
        (1, lambda subset: subset & 3 == 3, Confirmed.NOT_ALONE),
        (1, lambda subset: bool(subset & 3), Confirmed.ANOTHER),
        (3, lambda subset: bool(subset & 1), Confirmed.NOT_MINIMAL),
    ],
    ids=["innocent", "half of a pair", "one of two", "one too many"],
)
def test_what_is_not_the_whole_truth_is_not_confirmed(
    subset: int, shows: Callable[[int], bool], what: Confirmed
) -> None:
    assert confirmed(differing(), subset, shows)[0] is what


def test_launches_made_before_the_nomination_do_not_count_except_those_of_the_ends() -> None:
    record = differing()
    record.tallies |= {1: Tally(9, 0), ALL & ~1: Tally(0, 9)}
    confirmation = Confirmation(record, 1, ALL, OPTIONS.log_needed)
    assert confirmation.tally(1) == confirmation.tally(ALL & ~1) == Tally()
    assert (confirmation.tally(0), confirmation.tally(ALL)) == (Tally(0, 6), Tally(6, 0))
    assert not confirmation.shown("forward")


def test_each_unit_of_a_set_has_to_be_needed() -> None:
    assert [each.name for each in contrasts(0b1, ALL)] == ["forward", "reverse"]
    assert [each.pair for each in contrasts(0b101, ALL) if each.name == "needed"] == [(0b101, 0b100), (0b101, 0b001)]


def test_a_rate_comes_with_its_bounds() -> None:
    rate = rate_of(Tally(0, 14), 0.95)
    assert (rate.at_least, round(rate.at_most, 3), str(rate)) == (0.0, 0.193, "0 of 14")
    assert rate_of(Tally(), 0.95).at_most == 1.0


def test_a_search_costs_more_where_the_symptom_is_rarer() -> None:
    often, rarely = (expected_cost(16, 1, rate, 0.0, OPTIONS, random.Random(1), sessions=20) for rate in (0.9, 0.4))
    assert often.mean < rarely.mean
    assert often.mean <= often.most
    assert often.found == 1.0
    assert expected_cost(16, 1, 0.9, 0.0, OPTIONS, random.Random(1), sessions=20) == often
