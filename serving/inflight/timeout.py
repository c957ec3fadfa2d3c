"""The inflight timeout: read from the environment at start, changed on a running engine through its own control path.

`POST /set_internal_state {"server_args": {"dsv4_prefill_inflight_timeout": 60}}` reaches every rank of every stage in
the same pass of its scheduler, because SGLang broadcasts control requests like any other; `GET /server_info` reads it
back. 0 switches the watchdog off.
"""

import math
import os
from collections.abc import Mapping

VARIABLE = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
CONTROL_KEY = "dsv4_prefill_inflight_timeout"
DEFAULT_S = 120.0
LONGEST_S = 86_400.0
SHORTEST_S = 0.5


class BadTimeout(ValueError):
    """A timeout that is none."""


def checked(value: object, name: str) -> float:
    """`value` as seconds.

    Raises:
        BadTimeout: it is no number, negative, above a day, or so short that every transfer would be ended.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadTimeout(f"{name} must be a number of seconds, not {value!r}")
    if value and not SHORTEST_S <= value <= LONGEST_S:
        raise BadTimeout(f"{name} must be 0 (no limit) or from {SHORTEST_S:g} to {LONGEST_S:g} seconds, not {value:g}")
    return float(value)


def from_environment(environment: Mapping[str, str] = os.environ) -> float:
    """The timeout in seconds that this engine starts with.

    Raises:
        BadTimeout: the variable holds no usable number of seconds.
    """
    text = environment.get("SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT")
    if text is None or not text.strip():
        return DEFAULT_S
    try:
        value = float(text)
    except ValueError as error:
        raise BadTimeout(f"{VARIABLE} must be a number of seconds, not {text!r}") from error
    return checked(value, VARIABLE)
