"""What a search is asked for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """`confidence`: how sure "guilty" is. `least_rate`: a symptom, or a difference between the ends, that is rarer is
    not looked for. `budget` in launches, the invalid ones among them. A set that was invalid `tries` times in a row is
    not tried again, and `most_invalid` in a row, of whatever sets, end the search. `suspicion`: how much likelier a
    unit is to be the culprit than one that is not named here."""

    confidence: float = 0.95
    least_rate: float = 0.2
    budget: int = 400
    tries: int = 3
    most_invalid: int = 6
    suspicion: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """The chance with which "guilty" may be wrong."""
        return 1 - self.confidence

    @property
    def log_needed(self) -> float:
        """The log of the evidence that excludes something at the confidence."""
        return -math.log(self.error)
