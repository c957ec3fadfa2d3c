"""The inflight timeout: read from the environment at start, changed on a running engine through its own control path.

`POST /set_internal_state {"server_args": {"dsv4_prefill_inflight_timeout": 60}}` reaches every rank of every stage in
the same pass of its scheduler, because SGLang broadcasts control requests like any other; `GET /server_info` reads it
back. 0 switches the watchdog off. SGLang makes a number of what the request says before it is looked at here: `true`
arrives as 1, `false` as 0, and `"5"` as 5.

Two more keys may stand beside it. With `..._was` the change is made only where that is in force. With `..._lease` it
is for so many seconds: then the timeout that stood before the lease comes back by itself, whether or not whoever asked
for it is still there. A lease of 0 ends one at once, and does nothing where none runs.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from serving import limits
from serving.settings import BadSetting

VARIABLE = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
CONTROL_KEY = "dsv4_prefill_inflight_timeout"
WAS_KEY = f"{CONTROL_KEY}_was"
LEASE_KEY = f"{CONTROL_KEY}_lease"
DEFAULT_S = 120.0
LONGEST_LEASE_S = 3600.0

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


@dataclass(frozen=True)
class InForce:
    """Seconds: the timeout now, the one that stands when no lease changes it, and the moment at which a lease ends."""

    timeout_s: float
    standing_s: float
    lease_ends_s: float = math.inf

    @classmethod
    def standing(cls, timeout_s: float) -> "InForce":
        """This one, and no lease."""
        return cls(timeout_s, timeout_s)

    def leased(self, timeout_s: float, lease_s: float, now: float) -> "InForce":
        """This timeout for so long; what stands now comes back. A lease of 0 ends one."""
        return InForce(timeout_s, self.standing_s, now + lease_s) if lease_s else self.standing(self.standing_s)

    def lease_left_s(self, now: float) -> float:
        """How much longer the lease runs; 0 where none does."""
        return max(0.0, self.lease_ends_s - now) if math.isfinite(self.lease_ends_s) else 0.0

    def at(self, now: float) -> "InForce":
        """What is in force at this moment."""
        return self if now < self.lease_ends_s else self.standing(self.standing_s)


class Change:
    """What one request to the control path asks for. SGLang checks each of its keys and then applies each of them, in
    the order in which they are in the request."""

    def __init__(self, before: InForce) -> None:
        self._before = before
        self._asked: dict[str, float] = {}
        self._after: InForce | None = None

    def check(self, key: str, value: object) -> None:
        """Take in one key.

        Raises:
            BadTimeout: it cannot be so, or is not so.
        """
        if key == CONTROL_KEY:
            self._asked[key] = checked(value, key)
        elif not isinstance(value, int | float):
            raise BadTimeout(f"{key} must be a number of seconds, not {value!r}")
        elif key == WAS_KEY:
            if value != self._before.timeout_s:
                raise BadTimeout(f"{key} is {value:g}, and {self._before.timeout_s:g} s are in force")
        elif value != 0 and not 1 <= value <= LONGEST_LEASE_S:
            raise BadTimeout(f"{key} must be 0 (end it) or from 1 to {LONGEST_LEASE_S:g} seconds, not {value!r}")
        else:
            self._asked[key] = float(value)
        if CONTROL_KEY in self._asked and self._asked.get(LEASE_KEY) == 0:
            raise BadTimeout(f"{LEASE_KEY} of 0 ends a lease, and no {CONTROL_KEY} goes with it")

    def after(self, now: float) -> InForce:
        """What is in force from now on; the same when it is asked again, for another key."""
        if self._after is None:
            self._after = self._of_all(now)
        return self._after

    def _of_all(self, now: float) -> InForce:
        timeout_s = self._asked.get(CONTROL_KEY)
        if (lease_s := self._asked.get(LEASE_KEY)) is not None:
            return self._before.leased(self._before.timeout_s if timeout_s is None else timeout_s, lease_s, now)
        return self._before if timeout_s is None else InForce.standing(timeout_s)
