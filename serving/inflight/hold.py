"""A canary that is pinned on purpose: the proof that the watchdog fires, with harm to nobody.

Where SGLANG_DSV4_ALLOW_HOLD is on, a request whose id begins with `dsv4-hold-` is prefilled like any other and its KV
is never sent: it sits in the inflight queue exactly like a pinned one, until the watchdog ends it or its lease does.
The lease follows the prefix in seconds (`dsv4-hold-20-anything`); without one it is DEFAULT_LEASE_S, and never more
than LONGEST_LEASE_S, so that a forgotten canary cannot stay.
"""

import os
import re
from collections.abc import Mapping

from serving.settings import switch
from serving.untyped import Untyped

VARIABLE = "SGLANG_DSV4_ALLOW_HOLD"
PREFIX = "dsv4-hold-"
DEFAULT_LEASE_S = 60.0
LONGEST_LEASE_S = 1800.0

_LEASE = re.compile(re.escape(PREFIX) + r"(\d+)(?=-|$)")


def allowed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this engine takes canaries that are held.

    Raises:
        BadSetting: the variable says neither yes nor no; no engine starts with that.
    """
    return switch(VARIABLE, environment)


def lease_of(rid: str) -> float | None:
    """For how many seconds the request with this id asks to be held; None when it does not."""
    if not rid.startswith(PREFIX):
        return None
    asked = _LEASE.match(rid)
    return min(float(asked[1]) if asked else DEFAULT_LEASE_S, LONGEST_LEASE_S)


def send_chunk(original: Untyped, scheduler: Untyped, req: Untyped, *arguments: object, **named: object) -> None:
    """Around the sending of a chunk of KV: a held canary's is not sent."""
    if lease_of(req.rid) is None:
        original(scheduler, req, *arguments, **named)
