"""What launches have shown: a verdict each, counted by the exact set of units that was taken from the bad side."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar


class Verdict(StrEnum):
    """Of one launch, however many requests it was asked: chance may well be drawn once per launch, and then what is
    asked within it is no further evidence. Invalid says nothing of the symptom: the launch failed, or its environment
    was not what was planned, or the load was not."""

    SYMPTOM = "symptom"
    CLEAN = "clean"
    INVALID = "invalid"


class Phase(StrEnum):
    """What a launch is for."""

    ENDS = "ends"
    SEARCH = "search"
    CONFIRM = "confirm"
    MINIMIZE = "minimize"


@dataclass(frozen=True)
class Tally:
    """Valid launches of one set."""

    symptoms: int = 0
    clean: int = 0

    @property
    def launches(self) -> int:
        """All of them."""
        return self.symptoms + self.clean

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.symptoms + other.symptoms, self.clean + other.clean)

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(self.symptoms - other.symptoms, self.clean - other.clean)

    def and_one(self, *, symptom: bool) -> "Tally":
        """With one launch more."""
        return self + (Tally(1, 0) if symptom else Tally(0, 1))


NOTHING = Tally()


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    symptoms = clean = 0
    for tally in tallies:
        symptoms += tally.symptoms
        clean += tally.clean
    return Tally(symptoms, clean)


@dataclass
class Record:
    """Sets are numbers whose bits stand for units, in the order of their names. `cannot` holds sets that were invalid
    so often that they are not tried again."""

    tallies: dict[int, Tally] = field(default_factory=dict)
    cannot: set[int] = field(default_factory=set)

    def of(self, subset: int) -> Tally:
        """That of exactly this set."""
        return self.tallies.get(subset, NOTHING)

    def add(self, subset: int, *, symptom: bool) -> None:
        """Count one launch."""
        self.tallies[subset] = self.of(subset).and_one(symptom=symptom)


@dataclass(frozen=True)
class Ask:
    """A launch that a phase wants."""

    subset: int
    phase: Phase
    reason: str


Result = TypeVar("Result")
Steps = Generator[Ask, Verdict, Result]
"""A phase: yields the launches it wants, is sent their verdicts, and returns what it found. It is sent `INVALID` only
where a set is not to be tried again."""


class CannotLaunch(Exception):
    """A set that is needed was invalid each time."""

    def __init__(self, subset: int) -> None:
        super().__init__(subset)
        self.subset = subset


def launched(record: Record, ask: Ask) -> Steps[bool]:
    """Whether a launch showed the symptom.

    Raises:
        CannotLaunch
    """
    verdict = yield ask
    if verdict is Verdict.INVALID:
        record.cannot.add(ask.subset)
        raise CannotLaunch(ask.subset)
    record.add(ask.subset, symptom=verdict is Verdict.SYMPTOM)
    return verdict is Verdict.SYMPTOM


def bits(subset: int) -> Iterator[int]:
    """The numbers of the units in a set, lowest first."""
    while subset:
        lowest = subset & -subset
        yield lowest.bit_length() - 1
        subset ^= lowest
