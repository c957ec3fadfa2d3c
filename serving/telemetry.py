"""The dsv4_* metrics: written by the scheduler, on the engine's own /metrics, with the labels of the engine's own.

prometheus_client is imported when the first metric is made and not before: when it is imported it decides whether
processes share their values through files, and the engine names the directory of those after it has loaded plugins.
"""

import functools
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, get_args

from serving import loads
from serving.inflight.report import Inflight, Outcome, Report, Silent, State, Stratum
from serving.patches.registry import installed_version, standings
from serving.untyped import Untyped

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

DWELL_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0),
)
STATES: tuple[State, ...] = get_args(State)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
STRATA: tuple[Stratum, ...] = get_args(Stratum)

Ended = Literal["arrived", "early"]
"""How a request left its stratum: it has arrived, or it was ended before, so that its whole time is not known."""
ENDED: tuple[Ended, ...] = get_args(Ended)

Key = TypeVar("Key", bound=str)
OtherKey = TypeVar("OtherKey", bound=str)


@dataclass(frozen=True)
class Holds:
    """Decode's pages that stay owned after their request has ended, because a write to them may still arrive."""

    held_requests: int
    held_tokens: int
    oldest_hold_s: float


class HoldReport(Protocol):
    """Where decode reports its held pages to. A call costs microseconds and never raises."""

    def show(self, holds: Holds) -> None:
        """They are so now: on every change, and at least once a second while anything is held."""


class SilentHolds:
    """A report of held pages that goes nowhere."""

    def show(self, holds: Holds) -> None: ...


class Reading:
    """One gauge, written only when its value is another: a write takes a lock, the time and a file."""

    __slots__ = ("_last", "_set")

    def __init__(self, gauge: "Gauge") -> None:
        self._set = gauge.set
        self._last: float | None = None

    def show(self, value: float) -> None:
        """The gauge has this value. The first call writes whatever it is: a gauge never written is not exported."""
        if value != self._last:
            self._last = value
            self._set(value)


class Metrics:
    """Makes metrics that all carry the engine's labels."""

    def __init__(self, labels: Mapping[str, object], registry: "CollectorRegistry") -> None:
        self._values = {name: str(value) for name, value in labels.items()}
        self._registry = registry

    def reading(self, name: str, meaning: str) -> Reading:
        """A gauge."""
        return Reading(self.gauge(name, meaning).labels(**self._values))

    def readings(self, name: str, meaning: str, label: str, keys: Sequence[Key]) -> dict[Key, Reading]:
        """A gauge for each value of one more label."""
        gauge = self.gauge(name, meaning, label)
        return {key: Reading(gauge.labels(**self._values, **{label: key})) for key in keys}

    def counter(self, name: str, meaning: str) -> "Counter":
        """A counter; it is exported as 0 from now on."""
        return self._counter(name, meaning).labels(**self._values)

    def counters(self, name: str, meaning: str, label: str, keys: Sequence[Key]) -> "dict[Key, Counter]":
        """A counter for each value of one more label, all exported as 0 from now on."""
        counter = self._counter(name, meaning, label)
        return {key: counter.labels(**self._values, **{label: key}) for key in keys}

    def histograms(
        self, name: str, meaning: str, label: str, keys: Sequence[Key], buckets: Sequence[float]
    ) -> "dict[Key, Histogram]":
        """A histogram for each value of one more label, all exported as 0 from now on."""
        histogram = self._histogram(name, meaning, buckets, label)
        return {key: histogram.labels(**self._values, **{label: key}) for key in keys}

    def histogram_pairs(
        self,
        name: str,
        meaning: str,
        labels: tuple[str, str],
        keys: tuple[Sequence[Key], Sequence[OtherKey]],
        buckets: Sequence[float],
    ) -> "dict[tuple[Key, OtherKey], Histogram]":
        """A histogram for each pair of values of two more labels, all exported as 0 from now on."""
        histogram = self._histogram(name, meaning, buckets, *labels)
        return {
            pair: histogram.labels(**self._values, **dict(zip(labels, pair, strict=True)))
            for pair in itertools.product(*keys)
        }

    def gauge(self, name: str, meaning: str, *more: str) -> "Gauge":
        """A gauge whose labels have no values yet. Of two processes with the same labels the last to write counts."""
        from prometheus_client import Gauge

        names = (*self._values, *more)
        return Gauge(name, meaning, names, registry=self._registry, multiprocess_mode="mostrecent")

    def mark(self, name: str, meaning: str, *sets: Mapping[str, str]) -> None:
        """A gauge that is 1 for each of these sets of further labels."""
        gauge = self.gauge(name, meaning, *(sets[0] if sets else ()))
        for labels in sets:
            gauge.labels(**self._values, **labels).set(1)

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float], *more: str) -> "Histogram":
        from prometheus_client import Histogram

        return Histogram(name, meaning, (*self._values, *more), registry=self._registry, buckets=buckets)

    def _counter(self, name: str, meaning: str, *more: str) -> "Counter":
        from prometheus_client import Counter

        return Counter(name, meaning, (*self._values, *more), registry=self._registry)


class InflightMetrics:
    """The inflight queue as metrics. Its gauges appear with the first `show`, its counters at once."""

    def __init__(self, metrics: Metrics, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        name = "dsv4_inflight_"
        self._by_state = metrics.readings(
            f"{name}requests", "Requests in prefill's inflight queue, health checks apart.", "state", STATES
        )
        self._health_checks = metrics.reading(f"{name}health_checks", "Health checks in prefill's inflight queue.")
        self._held = metrics.reading(f"{name}held", "Canaries whose transfer is held back on request.")
        self._settling = metrics.reading(
            f"{name}settling", "Ended requests whose pages are kept until their transfer is over."
        )
        self._oldest_age = metrics.reading(f"{name}oldest_age_seconds", "How long the oldest request has been in it.")
        self._oldest_rid_hash = metrics.reading(
            f"{name}oldest_rid_hash", "32 bits of a hash of the oldest request's id; 0 when there is none."
        )
        self._since_progress = metrics.reading(
            f"{name}since_progress_seconds", "Time since a request entered, left or changed its state."
        )
        self._timeout = metrics.reading(f"{name}timeout_seconds", "The watchdog's deadline in force; 0 is none.")
        self._standing = metrics.reading(
            f"{name}standing_timeout_seconds", "The deadline that comes back when a lease on it ends."
        )
        self._refreshed = metrics.reading(
            f"{name}refreshed_timestamp_seconds", "When these figures were last written, in unix time."
        )
        self._dwell = metrics.histograms(
            f"{name}dwell_seconds", "Time in the inflight queue, by how it ended.", "outcome", OUTCOMES, DWELL_BUCKETS_S
        )
        self._by_stratum = metrics.histogram_pairs(
            f"{name}dwell_by_stratum_seconds",
            "Time in the inflight queue, by what was to be sent, of those that arrived and those ended before.",
            ("stratum", "ended"),
            (STRATA, ENDED),
            DWELL_BUCKETS_S,
        )
        self._health_checks_left = metrics.counters(
            f"{name}health_checks_left", "Health checks that left the inflight queue.", "outcome", OUTCOMES
        )
        self._fires = metrics.counters(
            "dsv4_watchdog_fires", "Requests that the watchdog ended, by the state they were in.", "state", STATES
        )
        self._unstamped = metrics.counter(
            f"{name}unstamped", "Requests found in the inflight queue that had not been seen entering it."
        )
        self._bytes = metrics.counter("dsv4_transferred_bytes", "KV sent for requests that left the inflight queue.")

    def show(self, inflight: Inflight) -> None:
        """As `Report.show`."""
        by_state = inflight.by_state
        for state, reading in self._by_state.items():
            reading.show(by_state.get(state, 0))
        self._health_checks.show(inflight.health_checks)
        self._held.show(inflight.held)
        self._settling.show(inflight.settling)
        self._oldest_age.show(inflight.oldest_age_s)
        self._oldest_rid_hash.show(inflight.oldest_rid_hash)
        self._since_progress.show(inflight.since_progress_s)
        self._timeout.show(inflight.timeout_s)
        self._standing.show(inflight.standing_timeout_s)
        self._refreshed.show(self._wall_clock())

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None:
        """As `Report.left`."""
        if health_check:
            self._health_checks_left[outcome].inc()
            return
        self._dwell[outcome].observe(dwell_s)
        if stratum is not None:
            self._by_stratum[stratum, "arrived" if outcome == "success" else "early"].observe(dwell_s)
        if transferred_bytes:
            self._bytes.inc(transferred_bytes)

    def fired(self, state: State) -> None:
        """As `Report.fired`."""
        self._fires[state].inc()

    def unstamped(self) -> None:
        """As `Report.unstamped`."""
        self._unstamped.inc()


class Both:
    """A report to two places."""

    def __init__(self, first: Report, second: Report) -> None:
        self._first = first
        self._second = second

    def show(self, inflight: Inflight) -> None:
        """As `Report.show`."""
        self._first.show(inflight)
        self._second.show(inflight)

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None:
        """As `Report.left`."""
        for report in (self._first, self._second):
            report.left(outcome, dwell_s, transferred_bytes, health_check=health_check, stratum=stratum)

    def fired(self, state: State) -> None:
        """As `Report.fired`."""
        self._first.fired(state)
        self._second.fired(state)

    def unstamped(self) -> None:
        """As `Report.unstamped`."""
        self._first.unstamped()
        self._second.unstamped()


class HoldMetrics:
    """Decode's held pages as metrics. They appear with the first `show`."""

    def __init__(self, metrics: Metrics, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._requests = metrics.reading(
            "dsv4_decode_held_requests", "Ended requests whose pages decode keeps until their transfer is over."
        )
        self._tokens = metrics.reading("dsv4_decode_held_tokens", "KV slots that these keep.")
        self._oldest = metrics.reading("dsv4_decode_oldest_hold_seconds", "How long the oldest of these is kept.")
        self._refreshed = metrics.reading(
            "dsv4_decode_holds_refreshed_timestamp_seconds", "When these figures were last written, in unix time."
        )

    def show(self, holds: Holds) -> None:
        """As `HoldReport.show`."""
        self._requests.show(holds.held_requests)
        self._tokens.show(holds.held_tokens)
        self._oldest.show(holds.oldest_hold_s)
        self._refreshed.show(self._wall_clock())


@functools.cache
def report_for(scheduler: Untyped) -> Report:
    """Where the inflight queue of this scheduler reports to, the same whenever asked; its channels must exist.

    The metrics go to /metrics if the engine lets this rank export any, the figures to /v1/loads if this rank publishes
    its load. Call `show` at once: until then neither has gauges, since nobody has looked.
    """
    metrics = _metrics_of(scheduler)
    exported = InflightMetrics(metrics) if metrics is not None else None
    published = None
    if scheduler.load_snapshot_writer is not None:
        published = loads.publish_inflight(lambda: scheduler.publish_load_snapshot(force=True))
    if exported is not None and published is not None:
        return Both(exported, published)
    return exported or published or Silent()


@functools.cache
def holds_for(scheduler: Untyped) -> HoldReport:
    """Where the held pages of this decode scheduler are reported to, the same whenever asked; `show` at once."""
    metrics = _metrics_of(scheduler)
    return HoldMetrics(metrics) if metrics is not None else SilentHolds()


def export_patch_info(_: None, scheduler: Untyped, *__: Untyped, **___: Untyped) -> None:
    """After the scheduler has made its metrics: the patch table of this process, as dsv4_patch_info."""
    metrics = _metrics_of(scheduler)
    if metrics is not None:
        version = str(installed_version())
        table = [{"patch": each.name, "status": each.status, "version": version} for each in standings()]
        metrics.mark("dsv4_patch_info", "1 for each patch, with its status on this version of SGLang.", *table)


def share_between_processes(_: None) -> None:
    """After the engine named the directory of its processes' metrics: prometheus_client writes there, in any case.

    What our hooks change has been imported by then, and some of it imports prometheus_client (Mooncake's transfer
    does): that would keep every metric in the memory of its own process, and leave /metrics empty.
    """
    values: Untyped = sys.modules.get("prometheus_client.values")
    if values is None or values.ValueClass is not values.MutexValue:
        return
    values.ValueClass = values.get_value_class()
    metrics: Untyped = importlib.import_module("prometheus_client.metrics")
    for early in tuple(metrics.REGISTRY._collector_to_names):
        if isinstance(early, metrics.MetricWrapperBase) and early._is_observable():
            early._metric_init()


def _metrics_of(scheduler: Untyped) -> Metrics | None:
    """Ranks that do not log their statistics export nothing, unless --enable-metrics-for-all-schedulers."""
    context = scheduler.metrics_collector_context
    if not context.current_scheduler_metrics_enabled:
        return None
    from prometheus_client import REGISTRY

    return Metrics(context.collector.labels, REGISTRY)
