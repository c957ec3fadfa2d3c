"""When the scheduler of this process last went through its loop, for the other threads of that process."""

import math
from typing import Final

TURNS_EVERY_S: Final = 3.0
"""An idle scheduler waits for a request for a second at a time; one that turned longer ago is in a long pass."""

last_s: float = -math.inf
"""On the monotonic clock; minus infinity where nobody notes it."""


def is_long(now_s: float) -> bool:
    """Whether the scheduler is in a pass that takes long: it has taken up nothing new since that began."""
    return TURNS_EVERY_S < now_s - last_s < math.inf
