"""How many fires of the watchdog are as many as were predicted, and how many are not. Pure."""

import math

FALSE_ALARM = 0.01
"""How often a change that costs what was predicted is taken back all the same."""


def allowed_fires(expected: float, error: float = FALSE_ALARM) -> int:
    """The most fires that are no reason to go back, where so many are expected: more come by chance with a probability
    of at most `error`, if they are Poisson with that mean.

    They are counted until one too many has come or the time is over, so it is one test, however often one looks.
    """
    term = total = math.exp(-expected)
    count = 0
    while 1 - total > error:
        count += 1
        term *= expected / count
        total += term
    return count
