"""Which known name a misspelt one was meant to be."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to `name`, if any is near enough to be meant; None otherwise.

    Nearest by single-character edits (insert, delete, replace, swap of neighbours), up to a third of the name; else
    by common runs of characters, which finds a name with a word left out.
    """
    candidates = sorted(set(known))
    limit = max(1, min(3, len(name) // 3))
    best = min(((_distance(name, other, limit), other) for other in candidates), default=None)
    if best and best[0] <= limit:
        return best[1]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    return near[0] if near else None


def _distance(left: str, right: str, limit: int) -> int:
    """Optimal string alignment distance; any number above `limit` when it is more than that."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, char in enumerate(left, start=1):
        current = [row]
        for column, other in enumerate(right, start=1):
            cost = min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (char != other))
            if row > 1 and column > 1 and char == right[column - 2] and left[row - 2] == other:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        if min(current) > limit:
            return limit + 1
        before, previous = previous, current
    return previous[-1]
