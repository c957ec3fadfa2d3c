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
    candidates = sorted(known)
    # Fewest edits first: one is the usual slip, and looking for few is cheap.
    for allowed in range(limit + 1):
        for other in candidates:
            if edits(name, other, allowed) <= allowed:
                return other
    return None


def _alike(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85)
    return near[0] if near else None


def edits(left: str, right: str, limit: int) -> int:
    """Edits between two names (optimal string alignment); any number above `limit` when there are more than that."""
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    start = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[start:], right[start:]
    too_many = limit + 1
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, char in enumerate(left, start=1):
        current = [row] + [too_many] * len(right)
        # A path through a cell further from the diagonal than `limit` takes more than `limit` inserts or deletes.
        for column in range(max(1, row - limit), min(len(right), row + limit) + 1):
            other = right[column - 1]
            cost = min(previous[column] + 1, current[column - 1] + 1, previous[column - 1] + (char != other))
            if row > 1 and column > 1 and char == right[column - 2] and left[row - 2] == other:
                cost = min(cost, before[column - 2] + 1)
            current[column] = cost
        if min(current) > limit:
            return too_many
        before, previous = previous, current
    return previous[-1]
