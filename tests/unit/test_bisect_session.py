"""Whole searches: what they find where nothing is left to chance, and that only their verdicts matter to them."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.bisect.course import Outcome
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.session import Ended, Session, Stopped, Trial, WrongTrial
from dsv4ctl.bisect.verdicts import Phase, Verdict
from dsv4ctl.bisect.words import Word, answer_of
from tests.calibration.bisect_worlds import Kind, names, world

Units = frozenset[str]
OPTIONS = Options(budget=2000)


@st.composite
def oracles(draw: st.DrawFn) -> tuple[list[str], list[Units]]:
    """Units, and sets that each bring the symptom: a monotone oracle."""
    units = names(draw(st.integers(1, 9)))
    culprits = draw(st.lists(st.frozensets(st.sampled_from(units), min_size=1, max_size=4), min_size=1, max_size=3))
    return units, culprits


def play(units: list[str], show: Callable[[Units], Verdict], seed: int = 0, options: Options = OPTIONS) -> Session:
    session = Session(units, options, seed)
    while (launch := session.next) is not None:
        session.record(show(launch.units))
    return session


def shown(culprits: list[Units]) -> Callable[[Units], Verdict]:
    return lambda units: Verdict.SYMPTOM if any(culprit <= units for culprit in culprits) else Verdict.CLEAN


def found(session: Session) -> list[Units]:
    assert session.ended is Outcome.FOUND
    return [session.names(each.subset) for each in session.course.found]


@settings(max_examples=150, deadline=None)
@given(oracles(), st.integers(0, 3))
def test_of_a_monotone_oracle_disjoint_minimal_sets_are_found(oracle: tuple[list[str], list[Units]], seed: int) -> None:
    units, culprits = oracle
    show = shown(culprits)
    session = play(units, show, seed)
    left = frozenset(units)
    for one in found(session):
        assert one <= left
        assert show(one) is Verdict.SYMPTOM
        assert all(show(one - {unit}) is Verdict.CLEAN for unit in one)
        left -= one
    assert show(left) is Verdict.CLEAN


@settings(max_examples=30, deadline=None)
@given(oracles(), st.randoms(use_true_random=False))
def test_the_order_of_the_units_does_not_matter(oracle: tuple[list[str], list[Units]], rng: random.Random) -> None:
    units, culprits = oracle
    other = rng.sample(units, len(units))
    assert play(units, shown(culprits)).trials == play(other, shown(culprits)).trials


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.data())
def test_a_search_that_is_resumed_anywhere_ends_in_the_same_answer(seed: int, data: st.DataObject) -> None:
    kind = Kind("resumed", (1,), (0.7,), (0.02,), units=8, invalid=0.1)
    whole = play(names(8), world(kind, seed).show, seed)
    cut = data.draw(st.integers(0, len(whole.trials)))
    resumed = Session(names(8), OPTIONS, seed)
    resumed.replay(whole.trials[:cut])
    resumed.replay(whole.trials[cut:])
    assert resumed.ended == whole.ended
    assert answer_of(resumed) == answer_of(whole)


def test_the_ends_come_first_and_both_of_them() -> None:
    session = play(names(16), shown([frozenset({"decode:U03"})]))
    first = {trial.units for trial in session.trials[:2]}
    assert first == {frozenset(), frozenset(names(16))}
    assert session.phases[Phase.MINIMIZE] == 0


def test_a_symptom_that_never_shows_is_not_reproduced() -> None:
    session = play(names(16), lambda _: Verdict.CLEAN)
    answer = answer_of(session)
    assert answer.word is Word.NOT_REPRODUCED
    assert answer.sentence == "could not reproduce in 14 launches; a rate above 19% is excluded at 95%"
    assert len(session.trials) == 18


@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_a_symptom_of_both_ends_is_not_of_the_environment(rate: float) -> None:
    answer = answer_of(play(names(16), world(Kind("both", (), backgrounds=(rate,)), 1).show))
    assert answer.word is Word.NOT_THE_ENVIRONMENT
    assert "similar rates" in answer.sentence
    assert not answer.culprits


def test_what_is_always_invalid_ends_the_search() -> None:
    session = play(names(4), lambda _: Verdict.INVALID)
    assert isinstance(session.ended, Stopped)
    assert len(session.trials) == OPTIONS.tries
    answer = answer_of(session)
    assert (answer.word, answer.invalid) == (Word.INCONCLUSIVE, OPTIONS.tries)


def test_a_set_that_cannot_be_launched_is_gone_around() -> None:
    culprit = frozenset({"decode:U05"})
    refused: set[Units] = set()

    def show(units: Units) -> Verdict:
        if 4 <= len(units) <= 8:
            refused.add(units)
            return Verdict.INVALID
        return shown([culprit])(units)

    session = play(names(16), show, options=Options(budget=400, most_invalid=50))
    assert found(session) == [culprit]
    tries = [sum(trial.units == units for trial in session.trials) for units in refused]
    assert tries == [OPTIONS.tries] * len(refused)


def test_many_invalid_launches_in_a_row_end_the_search() -> None:
    session = play(names(16), lambda units: Verdict.CLEAN if len(units) in (0, 16) else Verdict.INVALID)
    assert session.ended is Outcome.NOT_SHOWN
    session = play(
        names(16), lambda units: Verdict.INVALID if 0 < len(units) < 16 else shown([frozenset(names(16))])(units)
    )
    assert session.ended == Stopped("the last 6 launches were invalid")


def test_a_budget_ends_in_what_is_known_so_far() -> None:
    show = shown([frozenset({"decode:U03"})])
    whole = play(names(16), show)
    enough = next(at for at, trial in enumerate(whole.trials) if trial.units == {"decode:U03"}) + 1
    answer = answer_of(play(names(16), show, options=Options(budget=enough)))
    assert answer.word is Word.SUSPECT
    assert answer.culprits[0].units == ("decode:U03",)
    assert answer.sentence.startswith("decode:U03: suspect, p = 0.")
    assert f"the budget of {enough} launches is used up" in answer.sentence
    assert answer_of(play(names(16), show, options=Options(budget=5))).word is Word.INCONCLUSIVE


def test_trials_of_another_session_are_refused() -> None:
    session = Session(names(4), OPTIONS, 0)
    with pytest.raises(WrongTrial, match="launch 1 would be of"):
        session.replay([Trial(frozenset({"decode:U01"}), Verdict.CLEAN)])
    whole = play(names(4), lambda _: Verdict.CLEAN)
    with pytest.raises(Ended):
        whole.record(Verdict.CLEAN)
    with pytest.raises(ValueError, match="do not differ"):
        Session([], OPTIONS, 0)


def test_two_culprits_are_both_guilty_and_a_pair_is_one() -> None:
    two = [frozenset({"decode:U03"}), frozenset({"decode:U11"})]
    answer = answer_of(play(names(16), shown(two)))
    assert {culprit.units for culprit in answer.culprits} == {("decode:U03",), ("decode:U11",)}
    assert all(culprit.word is Word.GUILTY and culprit.probability is None for culprit in answer.culprits)
    pair = answer_of(play(names(16), shown([frozenset({"decode:U03", "decode:U11"})])))
    assert pair.sentence.startswith("decode:U03 and decode:U11 are guilty at 95%: alone on the good side they show")


def test_suspicion_makes_a_search_shorter() -> None:
    culprit = "decode:U07"
    plain = play(names(16), shown([frozenset({culprit})]))
    told = play(names(16), shown([frozenset({culprit})]), options=Options(suspicion={culprit: 30.0}))
    assert len(told.trials) < len(plain.trials)
