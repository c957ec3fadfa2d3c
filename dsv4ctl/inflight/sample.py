"""What was seen of one prefill worker at one moment: what a verdict is made of, and what a recording keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["dsv4", "loads", "gauge", "log"]
"""Who says how many requests are inflight, the best first.

`dsv4` are the patched engine's own figures, `loads` the count in SGLang's `/v1/loads`, `gauge` the one in `/metrics`,
`log` the one that SGLang prints with each prefill batch.
"""

REFRESH_S: Mapping[Source, float] = {"dsv4": 0.25, "loads": 0.05, "gauge": 30.0, "log": 30.0}
"""For how long the engine may leave a figure as it is although the queue has changed, in seconds.

The gauge is written with a batch, and otherwise on the idle path every 30 s, which is not reached while the queue holds
anything: with a pinned request and no traffic it is frozen for good. The log has a line for each batch and no others.
"""


@dataclass(frozen=True)
class Queue:
    """The inflight queue of one data-parallel rank, as one source has it. Ages are in seconds.

    `count`: requests; health checks are apart where `health_checks` is not None and among them where it is.
    `written_age_s`: how long ago the engine wrote the figures, None where the source does not say. `oldest_id` names
    the oldest request: the same on two samples is the same request. `fires` counts those that the watchdog has ended
    since the engine started, `left` all that have left this rank's queue; None where that is not known of a rank.
    `timeout_s` is the watchdog's deadline, 0 when it is off. `published_at`: when the scheduler published what has
    left; `refreshed_at`: when it last wrote the other figures, which it leaves alone while the queue is empty. Unix
    times of the worker's host, which compare with each other alone; None where the engine does not say so.
    """

    source: Source
    dp_rank: int
    count: int
    health_checks: int | None = None
    written_age_s: float | None = None
    oldest_age_s: float | None = None
    oldest_id: str | None = None
    since_progress_s: float | None = None
    by_state: Mapping[str, int] = field(default_factory=dict)
    held: int | None = None
    settling: int | None = None
    timeout_s: float | None = None
    fires: int | None = None
    left: float | None = None
    published_at: float | None = None
    refreshed_at: float | None = None


@dataclass(frozen=True)
class Decode:
    """What all decode workers together wait for: requests that wait for pages, or for KV that is on its way.

    `for_room` are those that wait for pages. `silent_s`: the longest that one of the workers has published nothing,
    `all_silent_s` the shortest.
    """

    expecting: int
    silent_s: float
    all_silent_s: float = 0.0
    for_room: int = 0


EventKind = Literal["fired", "transfer failed", "batch"]


@dataclass(frozen=True)
class Event:
    """A line of the worker's log that means something: the watchdog fired, a transfer failed, a batch was prefilled.

    `rid`, `room`, `age_s` and `state` are those of the request, where the line names them; `count` is the number of
    inflight requests in a batch's line.
    """

    kind: EventKind
    text: str
    dp_rank: int = 0
    rid: str | None = None
    age_s: float | None = None
    state: str | None = None
    count: int | None = None
    room: str | None = None


@dataclass(frozen=True)
class Sample:
    """All that was seen of a worker at one moment.

    `at_s`: seconds since the watch began, on the monotonic clock; `clock`: unix time. `left` are counters, from the
    engine's start, of requests that have left the queue, by how; a counter that is not there is not known.
    `left_age_s`: how long before the sample they were read. `decodes_away`: how many decode workers do not answer.
    `log_failure`: why the log could not be followed; the rest is not the worse for it. `failure`: why the worker could
    not be looked at; then there is nothing else.
    """

    worker: str
    at_s: float
    clock: float
    round_trip_s: float = 0.0
    queues: tuple[Queue, ...] = ()
    left: Mapping[str, float] = field(default_factory=dict)
    decode: Decode | None = None
    events: tuple[Event, ...] = ()
    started: str | None = None
    decodes_away: int = 0
    failure: str = ""
    left_age_s: float = 0.0
    log_failure: str = ""
