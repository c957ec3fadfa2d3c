"""What the running engines export: nothing at rest, each request once, health checks apart, the patch table."""

import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv4ctl.waiting import wait_until
from serving.cpu.tiny_model import VARIANTS
from serving.patches.registry import discover
from serving.telemetry import OUTCOMES, STATES
from tests.engine import StackProfile

pytestmark = pytest.mark.stack

SETTLED_WITHIN_S = 10
PROFILE = tomllib.loads((Path(__file__).parents[2] / "profiles" / "cpu.toml").read_text())
TIMEOUT_S = PROFILE["env"]["SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"]
DWELT = "dsv4_inflight_dwell_seconds_count"


@dataclass(frozen=True)
class Sample:
    """One line of /metrics."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Engine:
    """One engine of the shared stack."""

    url: str

    def samples(self, name: str) -> list[Sample]:
        """The samples of this name that /metrics has now."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).raise_for_status().text
        found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return [Sample(sample.labels, sample.value) for sample in found if sample.name == name]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name with these labels."""
        (value,) = (sample.value for sample in self.samples(name) if labels.items() <= sample.labels.items())
        return value

    def load(self, include: str) -> dict[str, object]:
        """What /v1/loads says of its one rank."""
        answer = httpx.get(f"{self.url}/v1/loads", params={"include": include}, timeout=30).raise_for_status().json()
        (load,) = answer["loads"]
        assert isinstance(load, dict)
        return load


@pytest.fixture
def prefill(shared: StackProfile) -> Engine:
    return Engine(f"http://127.0.0.1:{shared.ports[2]}")


@pytest.fixture
def decode(shared: StackProfile) -> Engine:
    return Engine(f"http://127.0.0.1:{shared.ports[4]}")


def settled(what: str, done: Callable[[], bool]) -> None:
    """The engine says so within a time that is far more than it takes."""
    wait_until(done, deadline_s=SETTLED_WITHIN_S, what=what, interval_s=0.1)


def ask(url: str, tokens: int) -> None:
    """One request of this length through the router, answered."""
    prompt = list(f"{time.monotonic_ns()} {'x' * tokens}".encode()[:tokens])
    sampling = {"temperature": 0, "max_new_tokens": 2}
    httpx.post(
        f"{url}/generate", json={"input_ids": prompt, "sampling_params": sampling}, timeout=60
    ).raise_for_status()


def test_a_queue_at_rest_is_exported_as_zeros_beside_the_engines_own_metrics(prefill: Engine) -> None:
    settled(
        "an empty inflight queue",
        lambda: {sample.value for sample in prefill.samples("dsv4_inflight_requests")} == {0.0},
    )
    (stock,) = prefill.samples("sglang:num_prefill_inflight_queue_reqs")
    states = prefill.samples("dsv4_inflight_requests")
    assert [sample.labels.pop("state") for sample in states] == list(STATES)
    assert all(sample.labels == stock.labels for sample in states)
    for name in ("held", "settling", "oldest_age_seconds", "oldest_rid_hash", "since_progress_seconds"):
        assert prefill.value(f"dsv4_inflight_{name}") == 0
    assert prefill.value("dsv4_inflight_timeout_seconds") == TIMEOUT_S
    assert prefill.value("dsv4_inflight_unstamped_total") == 0
    assert [sample.value for sample in prefill.samples("dsv4_watchdog_fires_total")] == [0.0] * len(STATES)
    assert len(prefill.samples(DWELT)) == len(OUTCOMES)


def test_both_engines_export_the_patch_table(prefill: Engine, decode: Engine) -> None:
    for engine in (prefill, decode):
        table = {
            sample.labels["patch"]: (sample.labels["status"], sample.labels["version"], sample.value)
            for sample in engine.samples("dsv4_patch_info")
        }
        assert set(table) == {patch.name for patch in discover()}
        assert {row[1:] for row in table.values()} == {("0.5.23", 1.0)}
        assert table["inflight-watchdog"][0] == table["telemetry"][0] == table["live-loads"][0] == "applied"
        assert "FAILED" not in {row[0] for row in table.values()}


def test_each_request_is_counted_once_with_the_bytes_of_its_kv(shared: StackProfile, prefill: Engine) -> None:
    def counted() -> tuple[float, float]:
        return prefill.value(DWELT, outcome="success"), prefill.value("dsv4_transferred_bytes_total")

    def reached(wanted: float) -> Callable[[], bool]:
        return lambda: counted()[0] >= wanted

    requests, sent = counted()
    for tokens in (100, 300, 300):
        ask(shared.url, tokens)
        settled("the request in the histogram", reached(requests + 1))
        requests_now, sent_now = counted()
        assert requests_now == requests + 1
        assert sent_now - sent == tokens * VARIANTS["tiny"].kv_bytes_per_token
        requests, sent = requests_now, sent_now
    dwelt = prefill.value("dsv4_inflight_dwell_seconds_sum", outcome="success")
    assert 0 < dwelt < requests * 60


def test_a_health_check_is_counted_apart_and_is_no_traffic(prefill: Engine) -> None:
    def counted() -> float:
        return prefill.value("dsv4_inflight_health_checks_left_total", outcome="success")

    before = counted()
    requests, sent = prefill.value(DWELT, outcome="success"), prefill.value("dsv4_transferred_bytes_total")
    for _ in range(3):
        httpx.get(f"{prefill.url}/health", timeout=30).raise_for_status()
    settled("three health checks", lambda: counted() >= before + 3)
    assert prefill.value(DWELT, outcome="success") == requests
    assert prefill.value("dsv4_transferred_bytes_total") == sent


def test_the_loads_carry_the_figures(prefill: Engine, decode: Engine) -> None:
    for include in ("disagg", "all", "core,disagg"):
        figures = prefill.load(include)["dsv4"]
        assert isinstance(figures, dict)
        assert list(figures["by_state"]) == list(STATES)
        assert figures["timeout_s"] == TIMEOUT_S
        assert figures["fires_total"] == figures["unstamped_total"] == 0
        assert figures["oldest_rid_hash"] == "00000000" or figures["oldest_age_s"] > 0
        assert abs(figures["refreshed_at"] - time.time()) < 3600
    assert "dsv4" not in prefill.load("core")
    assert "dsv4" not in decode.load("all")


def test_the_loads_carry_them_in_the_format_of_prometheus(prefill: Engine) -> None:
    query = {"include": "disagg", "format": "prometheus"}
    text = httpx.get(f"{prefill.url}/v1/loads", params=query, timeout=30).raise_for_status().text
    found = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert found["sglang_dsv4_timeout_s"] == TIMEOUT_S
    assert "sglang_dsv4_oldest_age_s" in found
