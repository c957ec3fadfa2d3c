"""What a search says: guilty, suspect, inconclusive, or not the environment, and what that rests on."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dsv4ctl.bisect.course import Outcome
from dsv4ctl.bisect.posterior import Singles
from dsv4ctl.bisect.session import Session, Stopped
from dsv4ctl.bisect.verdicts import Tally, Verdict
from dsv4ctl.tuning.binomial import share_at_most

LIKELY = 0.5
"""A unit that is less likely than this is no suspect. A choice."""


class Word(StrEnum):
    """The whole answer in a word."""

    GUILTY = "guilty"
    SUSPECT = "suspect"
    INCONCLUSIVE = "inconclusive"
    NOT_THE_ENVIRONMENT = "not the environment"
    NOT_REPRODUCED = "not reproduced"


@dataclass(frozen=True)
class Rate:
    """Launches of one set, and between what their rate lies: each bound holds at the confidence by itself (Clopper and
    Pearson), for a number of launches that was settled before."""

    symptoms: int
    launches: int
    at_least: float
    at_most: float

    def __str__(self) -> str:
        return f"{self.symptoms} of {self.launches}"


def rate_of(tally: Tally, confidence: float) -> Rate:
    """With its bounds; 0 and 1 where nothing was launched."""
    return Rate(
        tally.symptoms,
        tally.launches,
        1 - share_at_most(tally.clean, tally.launches, confidence),
        share_at_most(tally.symptoms, tally.launches, confidence),
    )


@dataclass(frozen=True)
class Culprit:
    """A set of units that bring the symptom, together if there are more than one. `probability`: None where it is
    guilty. `alone`: on the good side. `without`: the bad side without it and without the other culprits."""

    units: tuple[str, ...]
    word: Word
    probability: float | None
    alone: Rate
    without: Rate


@dataclass(frozen=True)
class Answer:
    """`invalid` launches are among the `launches`."""

    word: Word
    sentence: str
    culprits: tuple[Culprit, ...]
    bad: Rate
    good: Rate
    launches: int
    invalid: int


def answer_of(session: Session) -> Answer:
    """What a session says; one that has not ended says what it would if it were ended now."""
    course, confidence = session.course, session.options.confidence
    bad = rate_of(course.record.of(course.whole), confidence)
    good = rate_of(course.record.of(0), confidence)
    culprits: tuple[Culprit, ...] = ()
    ended = session.ended
    if ended is Outcome.FOUND:
        culprits = tuple(_culprit(session, found.subset, Word.GUILTY, None) for found in course.found)
        word, sentence = Word.GUILTY, "; ".join(_guilty(culprit, confidence) for culprit in culprits)
    elif isinstance(ended, Outcome) and not bad.symptoms:
        word = Word.NOT_REPRODUCED
        excluded = f"a rate above {bad.at_most:.0%} is excluded at {confidence:.0%}"
        sentence = f"could not reproduce in {bad.launches} launches; {excluded}"
    elif isinstance(ended, Outcome):
        word = Word.NOT_THE_ENVIRONMENT
        sentence = (
            f"the symptom appears with both environments at similar rates ({bad} launches with the bad one, {good} "
            "with the good one): not the environment"
        )
    else:
        culprits = tuple(_suspects(session))
        word = Word.SUSPECT if culprits else Word.INCONCLUSIVE
        sentence = "; ".join(_suspect(culprit) for culprit in culprits) or "inconclusive"
        if isinstance(ended, Stopped):
            of = f" ({_joined(sorted(ended.units)) or 'the good side'})" if ended.units is not None else ""
            sentence += f": {ended.why}{of}"
    invalid = sum(trial.verdict is Verdict.INVALID for trial in session.trials)
    return Answer(word, sentence, culprits, bad, good, len(session.trials), invalid)


def _culprit(session: Session, subset: int, word: Word, probability: float | None) -> Culprit:
    course, confidence = session.course, session.options.confidence
    without = course.whole & ~subset
    for found in course.found:
        without &= ~found.subset
    return Culprit(
        tuple(sorted(session.names(subset))),
        word,
        probability,
        rate_of(course.record.of(subset), confidence),
        rate_of(course.record.of(without), confidence),
    )


def _suspects(session: Session) -> Iterable[Culprit]:
    """Those that have shown the symptom alone, which is one half of what it takes, and the likeliest of the others."""
    course = session.course
    for found in course.found:
        yield _culprit(session, found.subset, Word.SUSPECT, 1 - found.error)
    if not course.record.of(course.bad).launches:
        return
    singles = Singles(course.record, course.bad, course.weights)
    shares = singles.shares()
    unit = shares.ranked()[0]
    subset, probability = 1 << unit, shares.unit[unit]
    pair, likely = singles.likeliest_pair()
    if likely * shares.several > probability:
        subset, probability = pair, likely * shares.several
    if probability >= LIKELY:
        yield _culprit(session, subset, Word.SUSPECT, probability)


def _guilty(culprit: Culprit, confidence: float) -> str:
    several = len(culprit.units) > 1
    return (
        f"{_joined(culprit.units)} {'are' if several else 'is'} guilty at {confidence:.0%}: alone on the good side "
        f"{'they show' if several else 'it shows'} the symptom ({culprit.alone} launches), and the bad side without "
        f"{'them' if several else 'it'} is clean ({culprit.without})"
    )


def _suspect(culprit: Culprit) -> str:
    return f"{_joined(culprit.units)}: suspect, p = {culprit.probability:.2f}"


def _joined(units: Iterable[str]) -> str:
    return " and ".join(units)
