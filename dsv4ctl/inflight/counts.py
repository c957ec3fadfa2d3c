"""What follows from counts alone, where an engine says how many are inflight and neither which nor for how long.

Each look at the queue either found something or did not. A count that is never zero means a pin only where flow would
have let it be zero by now; the rest is what other figures of the engine say beside it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv4ctl.inflight.chance import chance_of_run, chance_of_shift, independent
from dsv4ctl.inflight.sample import Decode

# Looks older than this say little about the load of now.
_REMEMBERED_S = 3600.0
_REMEMBERED = 4_000
# Two looks this many mean stays apart have next to nothing in common: at most the requests that stay for longer.
_STAYS_APART = 4.0
# From fewer requests the mean stay is a guess.
_STAYS_COUNTED = 10
# Three looks in a row at which decode expects nothing while prefill has something for it: a request that has just
# arrived is seen so for the milliseconds between two polls.
_ORPHAN_LOOKS = 3
_FLOOR_WINDOWS = 40


@dataclass(frozen=True)
class Look:
    """A count that is known to be of the moment `at_s`, and not an older one shown again."""

    at_s: float
    count: int
    left: float | None
    decode: Decode | None


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
class CountHistory:
    """The looks at one queue. `refresh_s`: two looks closer than this may be of one writing."""

    refresh_s: float
    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _spans: list[float] = field(default_factory=list)

    def add(self, look: Look) -> None:
        """One more look, later than the others."""
        before = self.looks[-1] if self.looks else None
        if before is not None and before.count and not look.count:
            self._spans.append(look.at_s - self._run()[0].at_s)
        self.looks.append(look)
        while self.looks[-1].at_s - self.looks[0].at_s > _REMEMBERED_S:
            self.looks.popleft()

    def forget(self) -> None:
        """The engine was started anew: what was seen before says nothing about it."""
        self.looks.clear()
        self._spans.clear()

    def clues(self) -> list[Clue]:
        """What speaks for a pin at the last look; nothing when that found none."""
        run = self._run()
        if not run:
            return []
        found = [self._nothing_leaves(run), self._orphan(run), self._decode_silent(run), self._never_zero(run)]
        return [clue for clue in (*found, self._floor_shift()) if clue is not None]

    def _run(self) -> list[Look]:
        """The last looks in a row that found something."""
        run: list[Look] = []
        for look in reversed(self.looks):
            if not look.count:
                break
            run.append(look)
        return run[::-1]

    def _nothing_leaves(self, run: Sequence[Look]) -> Clue | None:
        """While nothing leaves a queue that holds something, what is in it stays in it."""
        now = run[-1]
        if now.left is None:
            return None
        since = now
        for look in reversed(run):
            if look.left is None or look.left != now.left:
                break
            since = look
        held_s = now.at_s - since.at_s
        least = min(look.count for look in run if look.at_s >= since.at_s)
        words = f"nothing has left the queue for {held_s:.0f} s, by the engine's counters"
        return Clue(words, least, held_s, certain=True) if held_s > 0 else None

    def _orphan(self, run: Sequence[Look]) -> Clue | None:
        """What is inflight on prefill is expected on decode, and decode expects nothing."""
        alone: list[Look] = []
        for look in reversed(run):
            if look.decode is None or look.decode.expecting or look.decode.silent_s > self.refresh_s + 2.0:
                break
            alone.append(look)
        if len(alone) < _ORPHAN_LOOKS:
            return None
        held_s = alone[0].at_s - alone[-1].at_s
        least = min(look.count for look in alone)
        words = f"decode has expected no KV at {len(alone)} looks in a row, over {held_s:.0f} s"
        return Clue(words, least, held_s, certain=True)

    def _decode_silent(self, run: Sequence[Look]) -> Clue | None:
        """A decode whose scheduler stands still takes no KV: what waits for it is stuck."""
        decode = run[-1].decode
        if decode is None or not decode.silent_s:
            return None
        waiting = [look for look in run if look.at_s >= run[-1].at_s - decode.silent_s]
        held_s = min(decode.silent_s, run[-1].at_s - waiting[0].at_s)
        words = f"decode's scheduler has published nothing for {decode.silent_s:.0f} s"
        return Clue(words, min(look.count for look in waiting), held_s, certain=True) if held_s > 0 else None

    def _never_zero(self, run: Sequence[Look]) -> Clue | None:
        """The count has not been zero for so many independent looks that flow would hardly do it."""
        gap_s = self._gap_s()
        before = [look for look in self.looks if look.at_s < run[0].at_s]
        earlier = [before[index] for index in independent([look.at_s for look in before], gap_s)]
        looks = len(independent([look.at_s for look in run], gap_s))
        occupied = sum(1 for look in earlier if look.count)
        chance = chance_of_run(looks, occupied=occupied, empty=len(earlier) - occupied)
        held_s = run[-1].at_s - run[0].at_s
        words = (
            f"never zero at {looks} looks {gap_s:.1f} s apart, over {held_s:.0f} s; before, {occupied} of "
            f"{len(earlier)} such looks found something: by chance {chance:.1g}"
        )
        return Clue(words, 1, held_s, certain=False, chance=chance)

    def _gap_s(self) -> float:
        """How far apart looks must be to be independent: several mean stays, by Little's law from what has left.

        Where that is not known, the longest time that the queue was ever occupied, which is longer than any stay in it.
        """
        known = [look for look in self.looks if look.left is not None]
        if len(known) > 1:
            first, last = known[0], known[-1]
            gone = (last.left or 0.0) - (first.left or 0.0)
            if gone >= _STAYS_COUNTED:
                mean = sum(look.count for look in known) / len(known)
                return max(self.refresh_s, _STAYS_APART * mean * (last.at_s - first.at_s) / gone)
        return max([self.refresh_s, *self._spans])

    def _floor_shift(self) -> Clue | None:
        """The least count of each window has risen for good: a pinned request adds one to all of them."""
        floors = self._floors()
        best: Clue | None = None
        for later in range(1, len(floors) // 2 + 1):
            earlier, shifted = floors[:-later], floors[-later:]
            rise = min(floor for _, floor in shifted) - max(floor for _, floor in earlier)
            if rise < 1:
                continue
            # Where the windows are cut was looked for among this many.
            chance = min(1.0, chance_of_shift(later, len(earlier)) * (len(floors) // 2))
            held_s = self.looks[-1].at_s - shifted[0][0]
            words = (
                f"the least count of a window rose by {rise} and stays there for {held_s:.0f} s: by chance {chance:.1g}"
            )
            if best is None or chance < best.chance:
                best = Clue(words, rise, held_s, certain=False, chance=chance)
        return best

    def _floors(self) -> list[tuple[float, int]]:
        """When each of the last windows began, and the least count in it."""
        window_s = self._window_s()
        last = self.looks[-1].at_s
        windows: dict[int, list[Look]] = {}
        for look in self.looks:
            windows.setdefault(int((last - look.at_s) // window_s), []).append(look)
        newest_first: Mapping[int, list[Look]] = {
            number: looks for number, looks in sorted(windows.items()) if number < _FLOOR_WINDOWS and len(looks) > 1
        }
        return [(looks[0].at_s, min(look.count for look in looks)) for looks in newest_first.values()][::-1]

    def _window_s(self) -> float:
        """A window holds many looks and several of the spans seen."""
        return max(20 * self.refresh_s, 10.0, *(4 * span for span in self._spans[-20:]))
