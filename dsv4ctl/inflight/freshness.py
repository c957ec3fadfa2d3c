"""How old a figure is that another machine has stamped, without trusting that its clock is ours."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


class Freshness:
    """Follows one stamp, for instance the time of a load, from look to look.

    A stamp that changed since the look before is at most as old as that look is. The first one is compared with the
    Date of the answer it came in, which is of the same machine's clock, to the second.
    """

    def __init__(self) -> None:
        self._stamp: float | None = None
        self._age_s = 0.0
        self._looked_s = 0.0

    def age_s(self, stamp: float, now_s: float, served: str | None) -> float:
        """The age of what was stamped, in seconds, at most.

        Args:
            stamp: unix time of the host that wrote it.
            now_s: our monotonic clock.
            served: the Date header of the answer, None without one.
        """
        since_look_s = now_s - self._looked_s
        by_date_s = _between(stamp, served)
        if self._stamp is None:
            self._age_s = by_date_s or 0.0
        elif stamp == self._stamp:
            self._age_s += since_look_s
        else:
            self._age_s = min(since_look_s, by_date_s if by_date_s is not None else since_look_s)
        self._stamp, self._looked_s = stamp, now_s
        return self._age_s


def _between(stamp: float, served: str | None) -> float | None:
    """How long before the answer the stamp was made; a Date has whole seconds, so less than one is none."""
    if served is None:
        return None
    try:
        moment = parsedate_to_datetime(served)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(stamp, UTC)).total_seconds())
