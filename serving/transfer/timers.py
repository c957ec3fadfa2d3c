"""The two timers of a transfer on the monotonic clock: a step of the wall clock ends nobody and keeps nobody.

SGLang counts how long prefill waits to be asked for a room, and how long decode waits for its KV, on the wall clock. A
step ahead (a clock set after a long sleep, a leap of a virtual machine) then fails every waiting request at once, and
a step back makes of five minutes as many hours as it went.
"""

import time

from serving.untyped import Untyped


def waited_for_decode(original: Untyped, sender: Untyped) -> Untyped:
    """Around prefill's look at how long a request has waited for its decode to ask."""
    deferred = sender.kv_mgr.defer_decode_allocation
    return _on_monotonic_clock(original, sender, "_prefill_complete_time" if deferred else "init_time")


def waited_for_prefill(original: Untyped, receiver: Untyped) -> Untyped:
    """Around decode's look at how long a request has waited for its KV."""
    return _on_monotonic_clock(original, receiver, "init_time")


def _on_monotonic_clock(original: Untyped, waiting: Untyped, since: str) -> Untyped:
    """Move the wall clock's start of a wait to where the monotonic clock says that it was, and let SGLang look.

    A wait is looked at on every pass of the scheduler, so it began when a new start is first seen.
    """
    start = getattr(waiting, since)
    if start is None:
        return original(waiting)
    now = time.monotonic()
    seen = getattr(waiting, "dsv4_waits_since", None)
    if seen is None or seen[0] != start:
        seen = (start, now)
    moved = time.time() - (now - seen[1])
    setattr(waiting, since, moved)
    waiting.dsv4_waits_since = (moved, seen[1])
    return original(waiting)
