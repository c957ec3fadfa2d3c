"""Which known name a misspelt one was meant to be."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to `name`, if any is near enough to be meant; None otherwise.

    Nearest by single-character edits (insert, delete, replace, swap of neighbours), up to a third of the name; else
    by common runs of characters, which finds a name with a word left out.
    """
    limit = max(1, min(3, len(name) // 3))
    return within(name, known, limit) or _alike(name, known)


def within(name: str, known: Iterable[str], limit: int) -> str | None:
    """The known name that is nearest to `name` and at most `limit` edits away; the first by name of several."""
    best: str | None = None
    for other in sorted(known):
        distance = edits(name, other, limit)
        if distance <= limit:
            # From here on only a strictly nearer name is of interest.
            best, limit = other, distance - 1
    return best


def _alike(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85)
    return near[0] if near else None


def edits(left: str, right: str, limit: int) -> int:
    """Edits between two names (optimal string alignment); any number above `limit` when there are more than that."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    start = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[start:], right[start:]
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
