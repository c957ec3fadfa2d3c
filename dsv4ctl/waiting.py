"""The one place that sleeps: waiting for a condition, with a deadline and a name for what is awaited."""

import time
from collections.abc import Callable
from typing import TypeVar

from dsv4ctl.errors import DeadlineExceeded

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    *,
    deadline_s: float,
    what: str,
    interval_s: float = 0.1,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Poll `condition` until it returns something true, and return that.

    The condition is asked at least once, and once more at the deadline itself, so that a slow poll cannot lose a
    success that came in time.

    Raises:
        DeadlineExceeded: `what` did not come true within `deadline_s` seconds. `what` reads after "waited for".
    """
    end = clock() + deadline_s
    while True:
        last = clock() >= end
        value = condition()
        if value:
            return value
        if last:
            raise DeadlineExceeded(f"waited {deadline_s:g} s for {what}, and it did not come")
        sleep(max(0.0, min(interval_s, end - clock())))
