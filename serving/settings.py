"""Our own variables (SGLANG_DSV4_*, SGLANG_SM120_*), read strictly: what means nothing is refused, not replaced.

SGLang takes the default in place of a value that it does not understand, with a warning among hundreds of lines. One of
ours that is silently another than was meant would be found out in the very accident that it was set for.
"""

import os
from collections.abc import Mapping

_TRUE = ("1", "true", "yes", "y", "on")
_FALSE = ("0", "false", "no", "n", "off")


class BadSetting(ValueError):
    """One of our variables has a value that means nothing."""


def switch(variable: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether one of our switches is on; it is off where it is absent or empty. Upper and lower case are the same.

    Raises:
        BadSetting: it says neither yes nor no.
    """
    said = environment.get(variable, "")
    if said.lower() in _TRUE:
        return True
    if said and said.lower() not in _FALSE:
        raise BadSetting(f"{variable} is {said!r}, and must be one of {', '.join((*_TRUE, *_FALSE))}, or empty")
    return False
