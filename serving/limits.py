"""Our limits in seconds: what each may be, and what the environment of an engine says of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from serving.settings import BadSetting

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Limit:
    """From how short to how long, and whether 0 means that there is none. `shortest_s` is about a healthy engine."""

    shortest_s: float
    may_be_none: bool
    longest_s: float = _DAY_S

    def checked(self, value: object, name: str) -> float:
        """`value` as seconds; `name` is what it is called where it was said.

        Raises:
            BadSetting: it is no number, or outside the limits of this limit.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.shortest_s <= value <= self.longest_s:
                return float(value)
            if value == 0 and self.may_be_none:
                return 0.0
        none = "0 (no limit) or " if self.may_be_none else ""
        raise BadSetting(f"{name} must be {none}from {self.shortest_s:g} to {self.longest_s:g} seconds, not {value!r}")


LIMITS: Mapping[str, Limit] = {
    # A transfer of a healthy pair takes milliseconds, and under load seconds.
    "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": Limit(0.5, may_be_none=True),
    # Decode asks prefill's bootstrap server for a request's ranks, and when it gets no answer again a second later.
    "SGLANG_DSV4_LOST_DECODE_GRACE": Limit(2.0, may_be_none=False),
    # A scheduler shows that it moves every half second, and once a second while it sleeps for want of requests
    # (--sleep-on-idle): three of these, or a worker at rest would now and then tell its decode that it is stalled.
    "SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT": Limit(3.0, may_be_none=True),
}


def said(variable: str, environment: Mapping[str, str] = os.environ) -> float | None:
    """What one of LIMITS says in seconds, 0 for no limit; None where it is absent or empty.

    Raises:
        BadSetting: it says anything else.
    """
    text = environment.get(variable, "").strip()
    if not text:
        return None
    try:
        value: object = float(text)
    except ValueError:
        value = text
    return LIMITS[variable].checked(value, variable)


def seconds(variable: str, default_s: float, environment: Mapping[str, str] = os.environ) -> float:
    """As `said`, and `default_s` where it says nothing.

    Raises:
        SystemExit: it says anything else; SGLang would swallow any other exception and run without the limit.
    """
    try:
        value = said(variable, environment)
    except BadSetting as error:
        raise SystemExit(f"dsv4: error: {error}") from None
    return default_s if value is None else value
