"""Which set to launch next: the one whose verdict tells most of which unit it is."""

import math
from collections.abc import Container

from dsv4ctl.bisect.posterior import Shares


def entropy(chance: float) -> float:
    """Of a verdict with this chance, in nats."""
    if not 0 < chance < 1:
        return 0.0
    return -chance * math.log(chance) - (1 - chance) * math.log1p(-chance)


def most_informative(shares: Shares, bad: int, without: Container[int]) -> int | None:
    """The set with the greatest mutual information between its verdict and the culprit, if there is one, among the
    likeliest units, taken alone or taken away, however many they are. Never an end, nor a set in `without`; None where
    nothing is left.
    """
    ranked = shares.ranked()
    whole = sum(shares.unit.values()) or 1.0
    share = {unit: shares.unit[unit] / whole for unit in ranked}
    inside = {unit: (share[unit] * shares.hot[unit], share[unit] * entropy(shares.hot[unit])) for unit in ranked}
    outside = {unit: (share[unit] * shares.cold[unit], share[unit] * entropy(shares.cold[unit])) for unit in ranked}
    # Going through the ranks a unit changes from one side to the other, in both the set and its complement.
    chance = sum(at for at, _ in outside.values())
    known = sum(at for _, at in outside.values())
    other_chance = sum(at for at, _ in inside.values())
    other_known = sum(at for _, at in inside.values())
    subset, best, most = 0, None, 0.0
    for unit in ranked[:-1]:
        subset |= 1 << unit
        more, more_known = inside[unit][0] - outside[unit][0], inside[unit][1] - outside[unit][1]
        chance, known = chance + more, known + more_known
        other_chance, other_known = other_chance - more, other_known - more_known
        for candidate, told in (
            (subset, entropy(chance) - known),
            (bad & ~subset, entropy(other_chance) - other_known),
        ):
            if told > most + 1e-12 and candidate not in without:
                best, most = candidate, told
    return best
