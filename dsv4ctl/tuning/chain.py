"""The timers of a stack, with the inflight timeout that is, or is to be, in force."""

from typing import TYPE_CHECKING

from dsv4ctl.timers import Timer, timers_of
from dsv4ctl.tuning.recommend import with_timeout

if TYPE_CHECKING:
    from dsv4ctl.targets import Target


def chain(target: "Target", seconds: float) -> tuple[Timer, ...]:
    """The timers of a stack with this inflight timeout in all of its prefill workers."""
    workers = [worker for _, record in target.records for worker in record.workers]
    return with_timeout([t for w in workers for t in timers_of(w.name, w.role, w.env, w.argv)], seconds)
