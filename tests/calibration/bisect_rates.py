"""How often a search is right, and what it takes, over many worlds of a kind."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dsv4ctl.bisect.course import Outcome
from dsv4ctl.bisect.options import Options
from dsv4ctl.bisect.posterior import Singles
from dsv4ctl.bisect.session import Session
from dsv4ctl.bisect.verdicts import Phase, Record, Verdict
from dsv4ctl.bisect.words import Word, answer_of
from tests.calibration.bisect_rivals import Counted
from tests.calibration.bisect_worlds import Kind, Units, World, names, world


@dataclass(frozen=True)
class Played:
    """One search: `named` are the sets that it calls guilty, if `word` says so; `searched` how many of the launches
    were not for confirmation, `likely` how many it took until one unit was likely at 95 %, and `likely_right` whether
    that was the culprit; None and False where it was not asked for or did not come about."""

    word: Word
    named: frozenset[Units]
    launches: int
    searched: int
    likely: int | None = None
    likely_right: bool = False


@dataclass(frozen=True)
class Rates:
    """What became of the searches in worlds of one kind. `right`: all that it named are culprits; `whole`: and these
    are all of them."""

    kind: Kind
    sessions: int
    guilty: int
    right: int
    whole: int
    acquitted: int
    launches: tuple[int, ...]
    searched: float
    likely: float
    likely_right: int

    @property
    def wrong(self) -> int:
        """Answers called guilty that name what is no culprit, or not the whole of one."""
        return self.guilty - self.right

    @property
    def mean(self) -> float:
        """Launches."""
        return sum(self.launches) / self.sessions

    @property
    def most(self) -> int:
        """Launches that 95 % of the sessions do not exceed."""
        return sorted(self.launches)[int(0.95 * self.sessions)]


Player = Callable[[World, int], Played]


def rates(kind: Kind, play: Player, seeds: Iterable[int]) -> Rates:
    """Play in a world of this kind for each seed."""
    guilty = right = whole = acquitted = likely_right = 0
    launches, searched, likely = [], 0, 0
    for seed in seeds:
        place = world(kind, seed)
        played = play(place, seed)
        launches.append(played.launches)
        searched += played.searched
        likely += played.launches if played.likely is None else played.likely
        likely_right += played.likely_right
        acquitted += played.word in (Word.NOT_THE_ENVIRONMENT, Word.NOT_REPRODUCED)
        if played.word is Word.GUILTY:
            guilty += 1
            right += played.named <= set(place.culprits)
            whole += played.named == set(place.culprits)
    count = len(launches)
    return Rates(
        kind, count, guilty, right, whole, acquitted, tuple(launches), searched / count, likely / count, likely_right
    )


def ours(options: Options, *, watch: bool = False) -> Player:
    """The search of `bisect-env`; it takes longer to `watch` when one unit becomes likely."""

    def play(place: World, seed: int) -> Played:
        session = Session(names(place.kind.units), options, seed)
        course = session.course
        singles = Singles(Record(), course.whole, course.weights)
        likely, unit = None, None
        while (launch := session.next) is not None:
            verdict = place.show(launch.units)
            session.record(verdict)
            if watch and likely is None and verdict is not Verdict.INVALID:
                subset = sum(1 << session.units.index(name) for name in launch.units)
                singles.add(subset, symptom=verdict is Verdict.SYMPTOM)
                shares = singles.shares()
                first = shares.ranked()[0]
                if shares.unit[first] >= options.confidence:
                    likely, unit = len(session.trials), first
        named = frozenset(session.names(found.subset) for found in course.found)
        return Played(
            answer_of(session).word,
            named if session.ended is Outcome.FOUND else frozenset(),
            len(session.trials),
            len(session.trials) - session.phases[Phase.CONFIRM],
            likely,
            unit is not None and frozenset({session.units[unit]}) in place.culprits,
        )

    return play


def rival(method: Callable[[Counted, Units], Units | None]) -> Player:
    """A method that names a set or gives up."""

    def play(place: World, seed: int) -> Played:
        counted = Counted(place.show)
        found = method(counted, frozenset(names(place.kind.units)))
        word = Word.GUILTY if found is not None else Word.INCONCLUSIVE
        return Played(word, frozenset() if found is None else frozenset({found}), counted.launches, counted.launches)

    return play
