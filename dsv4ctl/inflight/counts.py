"""What follows from counts alone, where an engine says how many are inflight and neither which nor for how long.

Each look at the queue either found something or did not. A count that is never zero means a pin only where flow would
have let it be zero by now; the rest is what other figures of the engine say beside it.
"""

from collections import deque
from dataclasses import dataclass, field

from dsv4ctl.inflight.chance import SUSPICION, chance_of_run, chance_of_shift
from dsv4ctl.inflight.sample import Decode

# Three looks in a row at which decode expects fewer than prefill has for it: a request that has just arrived is seen so
# for the milliseconds between two polls, and a health check, which is for no decode, until the next one.
_ORPHAN_LOOKS = 3
# A stock prefill shows what has left until its next batch is done, and decode what has come until its next step: one
# look in five and fewer finds that, whatever the time between two. So many in a row do not.
_ORPHANS_CERTAIN = 12
_ORPHAN_CHANCE = 0.3
# Two looks this many mean stays apart have little in common: at most the requests that stay for much longer.
_STAYS_APART = 4.0
# From fewer requests the mean stay is a guess.
_STAYS_COUNTED = 10
# So many times as long as any time before that the queue was occupied.
_UNHEARD_OF = 2.0
# And so many times as long must the queue have been watched before, where nothing says how long a stay is.
_KNOWN_FOR = 2.0
# More than so many times as much as before, and this much more, is another load.
_BUSIER = 2.0
_BUSIER_AT_LEAST = 0.5
# Counters are read every 5 s: what they show may have been so long before.
_COUNTERS_LAG_S = 6.0
_WINDOWS = 40
_SPANS = 20


@dataclass(frozen=True)
class Look:
    """A count that is known to be of the moment `at_s`, and not an older one shown again. What has left by then was
    counted `left_age_s` before."""

    at_s: float
    count: int
    left: float | None
    decode: Decode | None
    left_age_s: float = 0.0


@dataclass(frozen=True)
class Clue:
    """A reason to think that `pinned` requests have been stuck for `for_s` seconds.

    `certain`: it follows, and is no matter of chance; else `chance` is that of flow looking so.
    """

    words: str
    pinned: int
    for_s: float
    certain: bool
    chance: float = 0.0


@dataclass
class _Stretch:
    """Looks in a row that have something in common: since when, how many, and the least number in them."""

    since_s: float
    least: int
    looks: int = 1
    last_s: float = 0.0
    total: int = 0

    def add(self, at_s: float, count: int) -> None:
        self.least = min(self.least, count)
        self.total += count
        self.looks += 1
        self.last_s = at_s

    @property
    def for_s(self) -> float:
        return self.last_s - self.since_s if self.looks > 1 else 0.0


@dataclass
class CountHistory:
    """The looks at one queue. `refresh_s`: two looks closer than this may be of one writing."""

    refresh_s: float
    last: Look | None = None
    _first: Look | None = None
    _first_counted: Look | None = None
    _run_counted: Look | None = None
    _moved_s: float | None = None
    _run: _Stretch | None = None
    _still: _Stretch | None = None
    _alone: _Stretch | None = None
    _looks: int = 0
    _occupied: int = 0
    _counts: int = 0
    _spans: deque[float] = field(default_factory=lambda: deque(maxlen=_SPANS))
    _longest_s: float = 0.0
    _floors: "_Floors | None" = None

    def add(self, look: Look) -> None:
        """One more look, later than the others."""
        before, self.last = self.last, look
        self._first = self._first or look
        if before is not None and before.left is not None and look.left is not None and look.left > before.left:
            self._moved_s = look.at_s
        self._first_counted = self._first_counted or (look if look.left is not None else None)
        self._counts += look.count
        if self._floors is None:
            self._floors = _Floors(self._window_s())
        self._floors.add(look.at_s, look.count, self._window_s())
        if not look.count:
            self._end_run()
            self._looks += 1
            return
        if self._run is None:
            self._run_counted = None
        self._run = _longer(self._run, look.at_s, look.count, goes_on=True)
        if look.left is not None:
            self._run_counted = self._run_counted or look
        same_left = before is not None and look.left is not None and look.left == before.left
        # From one reading of the counters to another, both taken while the queue held something.
        read_s = max(self._run.since_s, look.at_s - look.left_age_s)
        self._still = _longer(self._still, read_s, look.count, goes_on=same_left) if look.left is not None else None
        orphans = self._orphans(look)
        self._alone = _longer(self._alone, look.at_s, orphans, goes_on=True) if orphans > 0 else None

    def _orphans(self, look: Look) -> int:
        """How many of what is inflight no decode expects, at least: what comes to one later, it expects already."""
        if look.decode is None or look.decode.silent_s > self.refresh_s + 2:
            return 0
        return look.count - look.decode.expecting

    def _end_run(self) -> None:
        """What the run found becomes part of what was seen before."""
        if self._run is not None:
            self._spans.append(self._run.for_s)
            self._longest_s = max(self._longest_s, self._run.for_s)
            self._looks += self._run.looks
            self._occupied += self._run.looks
        self._run = self._still = self._alone = None

    def clues(self) -> list[Clue]:
        """What speaks for a pin at the last look; nothing when that found none."""
        if self._run is None or self.last is None:
            return []
        found = [self._nothing_leaves(), self._orphan(), self._decode_silent(self.last), self._never_zero(self._run)]
        return [clue for clue in (*found, self._floor_shift()) if clue is not None]

    def _nothing_leaves(self) -> Clue | None:
        """While nothing leaves a queue that holds something, what is in it stays in it."""
        if self._still is None or not self._still.for_s:
            return None
        words = f"nothing has left the queue for {self._still.for_s:.0f} s, by the engine's counters"
        return Clue(words, self._still.least, self._still.for_s, certain=True)

    def _orphan(self) -> Clue | None:
        """What is inflight on prefill is expected on decode, and decode expects less."""
        if self._alone is None or self._alone.looks < _ORPHAN_LOOKS:
            return None
        fewer = f"{self._alone.least} fewer than prefill has for it"
        words = f"decode has expected {fewer} at {self._alone.looks} looks in a row, over {self._alone.for_s:.0f} s"
        chance = _ORPHAN_CHANCE**self._alone.looks
        certain = self._alone.looks >= _ORPHANS_CERTAIN
        return Clue(words, self._alone.least, self._alone.for_s, certain=certain, chance=0.0 if certain else chance)

    def _decode_silent(self, last: Look) -> Clue | None:
        """Where every decode's scheduler stands still nobody takes KV: what is inflight and does not leave is stuck."""
        if last.decode is None or not last.decode.all_silent_s or self._run is None:
            return None
        began_s = last.at_s - last.decode.all_silent_s
        if self._moved_s is not None and self._moved_s > began_s + _COUNTERS_LAG_S:
            began_s = self._moved_s
        held_s = min(last.at_s - began_s, self._run.for_s)
        words = f"no decode scheduler has published anything for {last.decode.all_silent_s:.0f} s"
        return Clue(words, self._run.least, held_s, certain=True) if held_s > 0 else None

    def _never_zero(self, run: _Stretch) -> Clue | None:
        """The count has not been zero for so many independent looks that flow would hardly do it."""
        gap_s = self._gap_s()
        before_s = run.since_s - self._first.at_s if self._first is not None else 0.0
        earlier = min(self._looks, int(before_s / gap_s))
        occupied = round(earlier * self._occupied / self._looks) if self._looks else 0
        looks = min(run.looks, 1 + int(run.for_s / gap_s))
        chance = chance_of_run(looks, occupied=occupied, empty=earlier - occupied)
        if run.for_s < _UNHEARD_OF * self._longest_s:
            # Where few requests stay very long the looks are not as independent as the mean stay has them.
            chance = max(chance, SUSPICION)
        if self._is_busier(run):
            # What was seen before says how often flow would have looked so at the load of then.
            chance = max(chance, SUSPICION)
        if self._mean_stay_s() is None and before_s < _KNOWN_FOR * run.for_s:
            # Where stays are not known either, a quiet time before the first burst says little about the next ones.
            chance = max(chance, SUSPICION)
        words = (
            f"never zero at {looks} looks {gap_s:.1f} s apart, over {run.for_s:.0f} s; before, {occupied} of {earlier} "
            f"such looks found something: by chance {chance:.1g}"
        )
        return Clue(words, 1, run.for_s, certain=False, chance=chance)

    def _is_busier(self, run: _Stretch) -> bool:
        """Whether more goes through the queue in this run than before, by what leaves or, beside what may be stuck, by
        what is in it: of a load that has risen since, what was seen before says nothing."""
        before = (self._counts - run.total) / self._looks if self._looks else 0.0
        if run.total / run.looks - run.least > _BUSIER * before + _BUSIER_AT_LEAST:
            return True
        first, began, last = self._first_counted, self._run_counted, self.last
        if first is None or began is None or last is None or None in (first.left, began.left, last.left):
            return False
        assert first.left is not None
        assert began.left is not None
        assert last.left is not None
        was, now = began.left - first.left, last.left - began.left
        was_s, now_s = began.at_s - first.at_s, last.at_s - began.at_s
        return now >= _STAYS_COUNTED and now * was_s > _BUSIER * max(was, 1.0) * now_s

    def _gap_s(self) -> float:
        """How far apart looks must be to be independent: several mean stays.

        Where those are not known, the longest time that the queue was ever occupied, which is longer than any of them.
        """
        stay_s = self._mean_stay_s()
        return max(self.refresh_s, self._longest_s if stay_s is None else _STAYS_APART * stay_s)

    def _mean_stay_s(self) -> float | None:
        """How long a request stays, by Little's law of what has left; None where too few have, or none is counted."""
        first, last = self._first_counted, self.last
        if first is None or last is None or first.left is None or last.left is None:
            return None
        gone = last.left - first.left
        seen = self._looks + (self._run.looks if self._run is not None else 0)
        if gone < _STAYS_COUNTED or not seen:
            return None
        return self._counts / seen * (last.at_s - first.at_s) / gone

    def _window_s(self) -> float:
        """A window holds many looks and several of the spans seen."""
        return max(20 * self.refresh_s, 10.0, *(4 * span for span in self._spans)) if self._spans else 10.0

    def _floor_shift(self) -> Clue | None:
        """The least count of each window has risen for good: a pinned request adds one to all of them."""
        if self._floors is None or self.last is None:
            return None
        found = self._floors.shift()
        if found is None:
            return None
        rise, since_s, chance = found
        if self._run is not None and self._is_busier(self._run):
            chance = max(chance, SUSPICION)
        held_s = self.last.at_s - since_s
        words = f"the least count of a window rose by {rise}, {held_s:.0f} s ago, for good: by chance {chance:.1g}"
        return Clue(words, rise, held_s, certain=False, chance=chance)


def _longer(stretch: _Stretch | None, at_s: float, count: int, *, goes_on: bool) -> _Stretch:
    if stretch is None or not goes_on:
        return _Stretch(at_s, count, last_s=at_s, total=count)
    stretch.add(at_s, count)
    return stretch


class _Floors:
    """The least count of each of the last windows, all of one length; they begin anew when that has to be another."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._whole: deque[tuple[float, int]] = deque(maxlen=_WINDOWS)
        self._open: _Stretch | None = None
        self._found: tuple[int, float, float] | None = None

    def add(self, at_s: float, count: int, window_s: float) -> None:
        """One more look; windows must be `window_s` long now, or may be up to twice as long."""
        if window_s > self._window_s or window_s < self._window_s / 2:
            self._window_s, self._open, self._found = window_s, None, None
            self._whole.clear()
        if self._open is None:
            self._open = _Stretch(at_s, count)
        elif at_s - self._open.since_s >= self._window_s:
            self._whole.append((self._open.since_s, self._open.least))
            self._open = _Stretch(at_s, count)
            self._found = self._look()
        else:
            self._open.least = min(self._open.least, count)

    def shift(self) -> tuple[int, float, float] | None:
        """(by how much, since when, by which chance) the floor has risen; None when it has not, or falls again."""
        if self._found is not None and self._open is not None and self._open.least < self._least_after(self._found[1]):
            return None
        return self._found

    def _least_after(self, since_s: float) -> int:
        return min(floor for began_s, floor in self._whole if began_s >= since_s)

    def _look(self) -> tuple[int, float, float] | None:
        floors = list(self._whole)
        best: tuple[int, float, float] | None = None
        cuts = len(floors) // 2
        for later in range(1, cuts + 1):
            earlier, shifted = floors[:-later], floors[-later:]
            rise = min(floor for _, floor in shifted) - max(floor for _, floor in earlier)
            # Where to cut was looked for among this many places.
            chance = min(1.0, chance_of_shift(later, len(earlier)) * cuts)
            if rise >= 1 and (best is None or chance < best[2]):
                best = (rise, shifted[0][0], chance)
        return best
