"""Limits in seconds, read from the environment of an engine."""

import math
import os
from collections.abc import Mapping


def seconds(variable: str, default_s: float, environment: Mapping[str, str] = os.environ) -> float:
    """What `variable` says in seconds, zero or more; `default_s` where it is absent or empty.

    Raises:
        SystemExit: it says anything else; SGLang would swallow any other exception and run without the limit.
    """
    text = environment.get(variable, "").strip()
    if not text:
        return default_s
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise SystemExit(f"dsv4: {variable} is {text!r}, and must be a number of seconds, 0 or more")
    return value
