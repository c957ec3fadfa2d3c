"""The inflight timeout: read from the environment at start, changed on a running engine through its own control path.

`POST /set_internal_state {"server_args": {"dsv4_prefill_inflight_timeout": 60}}` reaches every rank of every stage in
the same pass of its scheduler, because SGLang broadcasts control requests like any other; `GET /server_info` reads it
back. 0 switches the watchdog off. SGLang makes a number of what the request says before it is looked at here: `true`
arrives as 1, `false` as 0, and `"5"` as 5.
"""

import os
from collections.abc import Mapping

from serving import limits
from serving.settings import BadSetting

VARIABLE = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
CONTROL_KEY = "dsv4_prefill_inflight_timeout"
DEFAULT_S = 120.0

BadTimeout = BadSetting
"""A timeout that is none."""


def checked(value: object, name: str) -> float:
    """`value` as seconds.

    Raises:
        BadTimeout: it is no number, negative, above a day, or so short that every transfer would be ended.
    """
    return limits.LIMITS[VARIABLE].checked(value, name)


def from_environment(environment: Mapping[str, str] = os.environ) -> float:
    """The timeout in seconds that this engine starts with.

    Raises:
        BadTimeout: the variable holds no usable number of seconds.
    """
    value = limits.said(VARIABLE, environment)
    return DEFAULT_S if value is None else value
