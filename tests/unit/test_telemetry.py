"""What the inflight queue reports, read back from a real registry, from real metric files, and from a real load."""

import json
import math
import subprocess
import sys
import textwrap
from itertools import count, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from serving import loads
from serving.inflight.report import Inflight, Outcome, Report, State, Stratum
from serving.patches import live_loads
from serving.patches import telemetry as telemetry_patch
from serving.telemetry import (
    DWELL_BUCKETS_S,
    ENDED,
    STRATA,
    Both,
    HoldMetrics,
    Holds,
    InflightMetrics,
    Metrics,
    Reading,
)

ROOT = Path(__file__).parent.parent.parent
LABELS = {"model_name": "tiny", "engine_type": "prefill", "tp_rank": 0, "pp_rank": 0}
AS_TEXT = {name: str(value) for name, value in LABELS.items()}
STATES: tuple[State, ...] = get_args(State)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
QUIET = Inflight(
    by_state=dict.fromkeys(STATES, 0),
    health_checks=0,
    held=0,
    settling=0,
    oldest_age_s=0.0,
    oldest_rid_hash=0,
    since_progress_s=0.0,
    timeout_s=120.0,
    standing_timeout_s=120.0,
)
PINNED = Inflight(
    by_state={"transferring": 2, "bootstrapping": 1},
    health_checks=1,
    held=1,
    settling=3,
    oldest_age_s=7.5,
    oldest_rid_hash=0xDEADBEEF,
    since_progress_s=6.25,
    timeout_s=30.0,
    standing_timeout_s=60.0,
)


class Exported:
    """What a registry has for our labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(LABELS, self.registry)

    def value(self, name: str, **more: str) -> float | None:
        return self.registry.get_sample_value(name, AS_TEXT | more)


@pytest.fixture
def exported() -> Exported:
    return Exported()


def test_what_has_never_happened_is_exported_as_zero(exported: Exported) -> None:
    InflightMetrics(exported.metrics)
    assert exported.value("dsv4_inflight_unstamped_total") == 0
    assert exported.value("dsv4_transferred_bytes_total") == 0
    for state in STATES:
        assert exported.value("dsv4_watchdog_fires_total", state=state) == 0
    for outcome in OUTCOMES:
        assert exported.value("dsv4_inflight_dwell_seconds_count", outcome=outcome) == 0
        assert exported.value("dsv4_inflight_health_checks_left_total", outcome=outcome) == 0
    for stratum in STRATA:
        for ended in ENDED:
            assert exported.value("dsv4_inflight_dwell_by_stratum_seconds_count", stratum=stratum, ended=ended) == 0


def test_an_empty_queue_is_zeros_and_the_timeout(exported: Exported) -> None:
    InflightMetrics(exported.metrics, wall_clock=lambda: 1000.5).show(QUIET)
    for state in STATES:
        assert exported.value("dsv4_inflight_requests", state=state) == 0
    for name in (
        "health_checks",
        "held",
        "settling",
        "oldest_age_seconds",
        "oldest_rid_hash",
        "since_progress_seconds",
    ):
        assert exported.value(f"dsv4_inflight_{name}") == 0
    assert exported.value("dsv4_inflight_timeout_seconds") == 120
    assert exported.value("dsv4_inflight_refreshed_timestamp_seconds") == 1000.5


def test_a_pinned_queue_is_shown_and_an_empty_one_after_it(exported: Exported) -> None:
    report = InflightMetrics(exported.metrics, wall_clock=map(float, count(1)).__next__)
    report.show(PINNED)
    assert exported.value("dsv4_inflight_requests", state="transferring") == 2
    assert exported.value("dsv4_inflight_requests", state="bootstrapping") == 1
    assert exported.value("dsv4_inflight_requests", state="waiting_for_input") == 0
    assert exported.value("dsv4_inflight_health_checks") == 1
    assert exported.value("dsv4_inflight_held") == 1
    assert exported.value("dsv4_inflight_settling") == 3
    assert exported.value("dsv4_inflight_oldest_age_seconds") == 7.5
    assert exported.value("dsv4_inflight_oldest_rid_hash") == 0xDEADBEEF
    assert exported.value("dsv4_inflight_since_progress_seconds") == 6.25
    assert exported.value("dsv4_inflight_timeout_seconds") == 30
    assert exported.value("dsv4_inflight_standing_timeout_seconds") == 60
    report.show(QUIET)
    assert exported.value("dsv4_inflight_requests", state="transferring") == 0
    assert exported.value("dsv4_inflight_oldest_rid_hash") == 0
    assert exported.value("dsv4_inflight_refreshed_timestamp_seconds") == 2


def test_a_health_check_is_no_traffic(exported: Exported) -> None:
    report = InflightMetrics(exported.metrics)
    report.left("success", 0.004, 0, health_check=True, stratum=None)
    report.left("success", 0.02, 4096, health_check=False, stratum="up_to_1MiB")
    assert exported.value("dsv4_inflight_health_checks_left_total", outcome="success") == 1
    assert exported.value("dsv4_inflight_dwell_seconds_count", outcome="success") == 1
    assert exported.value("dsv4_inflight_dwell_seconds_sum", outcome="success") == 0.02
    assert exported.value("dsv4_transferred_bytes_total") == 4096


def test_each_fire_is_counted_under_its_state(exported: Exported) -> None:
    report = InflightMetrics(exported.metrics)
    report.fired("transferring")
    report.fired("transferring")
    report.fired("waiting_for_input")
    report.unstamped()
    assert exported.value("dsv4_watchdog_fires_total", state="transferring") == 2
    assert exported.value("dsv4_watchdog_fires_total", state="waiting_for_input") == 1
    assert exported.value("dsv4_inflight_unstamped_total") == 1


Left = tuple[Outcome, float, int, Stratum]
lefts = st.tuples(st.sampled_from(OUTCOMES), st.floats(0, 3000), st.integers(0, 1 << 40), st.sampled_from(STRATA))


def buckets(exported: Exported, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The buckets of a histogram by these labels and the bucket's edge."""
    return {
        (*(sample.labels[label] for label in labels), sample.labels["le"]): sample.value
        for family in exported.registry.collect()
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(lefts, max_size=30))
def test_every_request_is_in_one_histogram_and_its_right_bucket(left: list[Left]) -> None:
    exported = Exported()
    report = InflightMetrics(exported.metrics)
    for outcome, dwell_s, size, stratum in left:
        report.left(outcome, dwell_s, size, health_check=False, stratum=None if outcome == "requeued" else stratum)
    edges = {"+Inf" if math.isinf(edge) else str(edge): edge for edge in (*DWELL_BUCKETS_S, math.inf)}
    assert buckets(exported, "dsv4_inflight_dwell_seconds", "outcome") == {
        (outcome, text): sum(ended == outcome and dwell_s <= edge for ended, dwell_s, _, _ in left)
        for outcome in OUTCOMES
        for text, edge in edges.items()
    }
    arrived = [(stratum, dwell_s) for outcome, dwell_s, _, stratum in left if outcome == "success"]
    early = [(stratum, dwell_s) for outcome, dwell_s, _, stratum in left if outcome not in ("success", "requeued")]
    assert buckets(exported, "dsv4_inflight_dwell_by_stratum_seconds", "stratum", "ended") == {
        (stratum, ended, text): sum(of == stratum and dwell_s <= edge for of, dwell_s in those)
        for stratum in STRATA
        for ended, those in (("arrived", arrived), ("early", early))
        for text, edge in edges.items()
    }
    assert exported.value("dsv4_transferred_bytes_total") == sum(size for _, _, size, _ in left)


def test_the_buckets_go_from_a_millisecond_to_twenty_minutes() -> None:
    assert (DWELL_BUCKETS_S[0], DWELL_BUCKETS_S[-1]) == (0.001, 1200.0)
    assert sorted(set(DWELL_BUCKETS_S)) == list(DWELL_BUCKETS_S)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_gauge_is_written_when_its_value_changes_and_is_always_right(values: list[float]) -> None:
    class Gauge:
        written: list[float]

        def set(self, value: float) -> None:
            self.written.append(value)

    gauge: Any = Gauge()
    gauge.written = []
    reading = Reading(gauge)
    for value in values:
        reading.show(value)
        assert gauge.written[-1] == value
    changes = 1 + sum(before != after for before, after in pairwise(values))
    assert len(gauge.written) == changes


def test_held_pages_are_shown(exported: Exported) -> None:
    report = HoldMetrics(exported.metrics, wall_clock=lambda: 5.0)
    report.show(Holds(held_requests=2, held_tokens=4096, oldest_hold_s=1.5))
    assert exported.value("dsv4_decode_held_requests") == 2
    assert exported.value("dsv4_decode_held_tokens") == 4096
    assert exported.value("dsv4_decode_oldest_hold_seconds") == 1.5
    assert exported.value("dsv4_decode_holds_refreshed_timestamp_seconds") == 5


SHARED_FILES = """
import json, os, sys
if {early}:
    import prometheus_client
    early = prometheus_client.Counter("early", "Made before the engine named its directory.")
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
from serving import telemetry
telemetry.share_between_processes(None)
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess
report = telemetry.InflightMetrics(telemetry.Metrics({{"tp_rank": 0}}, REGISTRY))
pid = os.fork()
if not pid:
    from serving.inflight.report import Inflight
    if {early}:
        early.inc()
    child = telemetry.Metrics({{"tp_rank": 1}}, CollectorRegistry())
    telemetry.InflightMetrics(child).show(Inflight({{"transferring": 4}}, 0, 0, 0, 1.0, 2, 3.0, 4.0, 5.0))
    os._exit(0)
os.waitpid(pid, 0)
shared = CollectorRegistry()
multiprocess.MultiProcessCollector(shared)
found = {{}}
for family in shared.collect():
    for sample in family.samples:
        found[sample.name + json.dumps(sample.labels, sort_keys=True)] = sample.value
print(json.dumps(found))
"""


@pytest.mark.parametrize("early", [False, True], ids=["imported in time", "imported too early"])
def test_what_a_scheduler_writes_is_read_by_another_process(early: bool, tmp_path: Path) -> None:
    """The engine's processes share their metrics in files, and its HTTP process reads them all."""
    code = textwrap.dedent(SHARED_FILES.format(early=early))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    assert found['dsv4_inflight_requests{"state": "transferring", "tp_rank": "1"}'] == 4
    assert found['dsv4_inflight_requests{"state": "bootstrapping", "tp_rank": "1"}'] == 0
    assert found['dsv4_inflight_unstamped_total{"tp_rank": "0"}'] == 0
    assert not [name for name in found if name.startswith("dsv4_inflight_requests") and '"0"}' in name]
    assert found.get("early_total{}") == (1 if early else None)


def test_our_modules_do_not_import_prometheus_client() -> None:
    code = "import sys, serving.telemetry, serving.plugin; print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_load_carries_the_figures_and_their_time(clock: Clock) -> None:
    published = loads.Published(lambda: None, clock, wall_clock=lambda: 77.25)
    assert published.section() is None
    report: Report = Both(published, InflightMetrics(Exported().metrics))
    report.show(PINNED)
    report.fired("transferring")
    report.left("timeout", 30.0, 0, health_check=False, stratum="more")
    report.left("success", 0.1, 0, health_check=True, stratum=None)
    report.unstamped()
    assert published.section() == {
        "by_state": {"transferring": 2, "bootstrapping": 1},
        "health_checks": 1,
        "held": 1,
        "settling": 3,
        "oldest_age_s": 7.5,
        "oldest_rid_hash": "deadbeef",
        "since_progress_s": 6.25,
        "timeout_s": 30.0,
        "standing_timeout_s": 60.0,
        "refreshed_at": 77.25,
        "left_total": {"success": 0, "failed": 0, "aborted": 0, "timeout": 1, "requeued": 0},
        "fires_total": 1,
        "unstamped_total": 1,
    }


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_a_load_is_never_older_than_the_report_allows_and_not_published_twice(steps: list[tuple[float, bool]]) -> None:
    """Whether the engine publishes by itself (then `section` is asked) or does not, as in its pipeline loop."""
    clock = Clock()
    asked: list[float] = []
    published = loads.Published(lambda: asked.append(clock.now), clock, wall_clock=clock)
    last = 0.0
    for later, engine_publishes in steps:
        clock.now += later
        if engine_publishes and published.section() is not None:
            last = clock.now
        before = len(asked)
        published.show(QUIET)
        if len(asked) > before:
            assert clock.now - last >= loads.REPUBLISH_S
            last = clock.now
        assert clock.now - last < loads.REPUBLISH_S


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """SGLang's module of loads, and a file for them."""
    import sglang.srt.managers.load_snapshot as module

    monkeypatch.setattr(module, "snapshot_decoder", module.snapshot_decoder)
    monkeypatch.setattr(loads, "_published", None)
    return module, str(tmp_path / "loads")


def test_a_load_goes_through_shared_memory_with_our_section(snapshots: Any) -> None:
    module, path = snapshots
    writer = module.ShmLoadSnapshotWriter(path, 1, 0)
    reader = module.ShmLoadSnapshotReader(path, 1)
    stock = module.LoadSnapshot(num_running_reqs=3, disaggregation=module.DisaggregationMetrics("prefill"))
    assert loads.with_inflight(writer, stock) is None
    loads.publish_inflight(lambda: None).show(PINNED)
    changed = loads.with_inflight(writer, stock)
    assert changed is not None
    arguments, options = changed
    module.ShmLoadSnapshotWriter.write(*arguments, **options)
    assert reader.read(0).to_dict({"disagg"}) == stock.to_dict({"disagg"})
    loads.decode_inflight()
    carried = reader.read(0)
    for include in (None, {"all"}, {"disagg"}, {"core", "disagg"}):
        load = carried.to_dict(include)
        assert load.pop("dsv4")["oldest_rid_hash"] == "deadbeef"
        assert load == stock.to_dict(include)
    for include in ({"core"}, {"memory"}):
        assert carried.to_dict(include) == stock.to_dict(include)
    with pytest.raises(ValueError, match="Invalid include"):
        carried.to_dict({"dsv4"})
    module.ShmLoadSnapshotWriter.write(writer, stock)
    assert reader.read(0).to_dict() == stock.to_dict()
    writer.close()
    reader.close()


def test_the_prometheus_format_of_loads_carries_the_numbers_too() -> None:
    from sglang.srt.entrypoints.v1_loads import _format_loads_prometheus

    load = loads.snapshot_class()(dsv4={"oldest_age_s": 7.5, "by_state": {"transferring": 2}, "oldest_rid_hash": "aa"})
    lines = _format_loads_prometheus([load], {"disagg"}).body.decode().splitlines()
    assert 'sglang_dsv4_oldest_age_s{dp_rank="0"} 7.5' in lines
    assert not [line for line in lines if "by_state" in line or "oldest_rid_hash" in line]


def test_the_page_of_metrics_has_every_metric_and_no_other() -> None:
    exported = Exported()
    InflightMetrics(exported.metrics).show(QUIET)
    HoldMetrics(exported.metrics).show(Holds(0, 0, 0.0))
    exported.metrics.mark("dsv4_patch_info", "", {"patch": "a", "status": "applied", "version": "1"})
    names = {family.name + ("_total" if family.type == "counter" else "") for family in exported.registry.collect()}
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = {line.split("`")[1].partition("{")[0] for line in page.splitlines() if line.startswith("| `dsv4_")}
    assert listed == names
    for value in (*STATES, *OUTCOMES, *STRATA, *ENDED):
        assert f"`{value}`" in page


@pytest.mark.parametrize("patch", [live_loads.PATCH, telemetry_patch.PATCH], ids=lambda patch: patch.name)
def test_no_telemetry_is_no_reason_to_refuse_an_engine(patch: Any) -> None:
    assert not patch.required
