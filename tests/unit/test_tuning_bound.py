"""From counted times to a bound: what it rests on, and when there is none."""

import random

import pytest

from dsv4ctl.timers import timers_of
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import Block, History, merged
from dsv4ctl.tuning.independence import design_effect, worth_of
from dsv4ctl.tuning.recommend import NoRoom, Recommendation, cost_of, held_by_a_pin, of_timeout, recommend, with_timeout

EDGES = (0.1, 1.0, 10.0)


def history(*blocks: tuple[int, ...], ended: int = 0, seconds: float = 5.0) -> History:
    """Blocks by their counts; those that were ended early are spread over the first ones."""
    return History(EDGES, tuple(Block(seconds, counts, int(number < ended)) for number, counts in enumerate(blocks)))


def steady(blocks: int = 60, *, long: int = 0, ended: int = 0) -> History:
    """Ten requests in each block, of which one is slower; in some of them, evenly, one more that is slower still."""
    every = blocks // max(1, long)
    slowest = [int(long > 0 and number % every == every // 2) for number in range(blocks)]
    return history(*((9, 1, slow, 0) for slow in slowest), ended=ended)


CHAIN = (
    *timers_of("prefill-0", "prefill", {"SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": "60"}, ()),
    *timers_of("decode-0", "decode", {}, ()),
    *timers_of("router", "router", {}, ("--retry-max-retries", "1", "--request-timeout-secs", "600")),
)


def test_the_bound_is_the_edge_beyond_which_so_few_may_lie() -> None:
    found = bound_of(steady())
    assert isinstance(found, Bound)
    assert (found.quantile, found.seconds, found.requests, found.above, found.may_exceed) == (0.99, 1.0, 600, 0, 1)


def test_what_was_ended_early_counts_as_longer_than_all_others() -> None:
    assert isinstance(bound_of(steady(ended=1)), Bound)
    none = bound_of(steady(ended=9))
    assert isinstance(none, NoBound)
    assert none.why.startswith("9 of 609 requests were ended early")
    assert none.missing is None


def test_with_too_little_it_says_how_much_is_missing_and_no_number() -> None:
    none = bound_of(steady(blocks=25))
    assert isinstance(none, NoBound)
    assert (
        "250 requests are worth 250 independent ones (design effect 1.00), and 299 bound the 99% quantile" in none.why
    )
    assert none.missing == 50
    assert isinstance(bound_of(steady(blocks=30)), Bound)
    assert isinstance(bound_of(history((100, 0, 0, 0))), NoBound)
    assert isinstance(bound_of(history()), NoBound)


def test_slow_ones_that_come_together_are_worth_less() -> None:
    rng = random.Random(7)
    clustered = [(0, 0, 10, 0) if rng.random() < 0.1 else (10, 0, 0, 0) for _ in range(400)]
    scattered = [(10 - long, 0, long, 0) for long in (sum(rng.random() < 0.1 for _ in range(10)) for _ in range(400))]
    together, apart = worth_of(history(*clustered)), worth_of(history(*scattered))
    assert together is not None
    assert apart is not None
    assert together.effect > 8
    assert apart.effect < 2
    assert together.samples(4000) < 500


def test_a_window_whose_halves_differ_bounds_nothing() -> None:
    none = bound_of(history(*[(10, 0, 0, 0)] * 50, *[(5, 5, 0, 0)] * 50))
    assert isinstance(none, NoBound)
    assert "requests stay longer in the second half of the window" in none.why
    none = bound_of(history(*[(5, 5, 0, 0)] * 50, *[(10, 0, 0, 0)] * 50))
    assert isinstance(none, NoBound)
    assert "requests stay shorter" in none.why


def test_the_design_effect_of_whole_blocks_is_their_size() -> None:
    assert design_effect([10] * 1000, [10 if number % 5 == 0 else 0 for number in range(1000)]) == pytest.approx(
        10, rel=0.01
    )
    assert design_effect([10] * 100, [2] * 100) == 1.0


def test_merged_blocks_have_all_that_the_newest_had() -> None:
    blocks = [Block(5.0, (number, 1), number % 2) for number in range(5)]
    assert merged(blocks, 2) == [Block(10.0, (3, 2), 1), Block(10.0, (7, 2), 1)]


def test_the_recommendation_is_round_longer_than_the_heartbeat_and_fits_in_the_chain() -> None:
    seen = steady()
    bound = bound_of(seen)
    assert isinstance(bound, Bound)
    found = recommend(seen, bound, CHAIN)
    assert isinstance(found, Recommendation)
    # Three times the bound is 3 s, and the heartbeat of decode-0 is 10 s.
    assert found.cost.seconds == 15.0
    assert found.cost.longer == 0
    assert found.cost.per_day == pytest.approx(found.cost.share * 600 / 300 * 86_400)
    assert any("decode-0" in words for words in found.at_least)


def test_where_the_chain_has_no_room_the_two_timers_are_named() -> None:
    seen = history(*[(9, 0, 1, 0)] * 60)
    bound = bound_of(seen)
    assert isinstance(bound, Bound)
    chain = (
        *timers_of("p", "prefill", {}, ()),
        *timers_of("d", "decode", {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "30"}, ()),
    )
    none = recommend(seen, bound, chain)
    assert isinstance(none, NoRoom)
    assert none.seconds == 30.0
    assert "SGLANG_DISAGGREGATION_WAITING_TIMEOUT" in str(none.pairs[0])


def test_a_chain_that_was_broken_without_the_timeout_is_not_its_fault() -> None:
    assert of_timeout(()) == ()
    chain = with_timeout(CHAIN, 7.0)
    assert {timer.seconds for timer in chain if timer.letter == "T"} == {7.0}
    assert [timer for timer in chain if timer.letter != "T"] == [timer for timer in CHAIN if timer.letter != "T"]


def test_what_a_shorter_one_would_have_ended_is_counted() -> None:
    seen = steady(long=6)
    bound = bound_of(seen)
    assert isinstance(bound, Bound)
    assert cost_of(5.0, seen, bound).longer == 6
    assert cost_of(10.0, seen, bound).longer == 0
    assert cost_of(5.0, seen, bound).share > cost_of(10.0, seen, bound).share


def test_a_pin_holds_the_pages_of_its_prompt_for_the_timeout_and_the_watchdogs_tick() -> None:
    assert held_by_a_pin(60.0, 8000, 32_000) == (8000 * 62.0, 0.25)
