"""What the engines say of themselves while an episode runs, and what they hold when they are quiet."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.stack.faults.stack import FaultStack, Role

LOADS = "/v1/loads?include=disagg"
LOADS_EVERY_S = 0.2
METRICS_EVERY_S = 1.0
ANSWER_WITHIN_S = 3.0

STOCK_GAUGE = "sglang:num_prefill_inflight_queue_reqs"


@dataclass(frozen=True)
class Load:
    """One answer of prefill's /v1/loads, when it came, in seconds of the monotonic clock.

    `inflight` is SGLang's own count, of real requests and health checks alike; `dsv4` our section, None without it.
    `fresh`: the scheduler has published since the answer before. One that computes a batch does not, and nothing joins
    or leaves its queue meanwhile.
    """

    told_s: float
    inflight: int
    dsv4: Mapping[str, Any] | None
    fresh: bool = True

    @property
    def ours(self) -> int | None:
        """Our count of the same: requests in any state, and health checks."""
        return None if self.dsv4 is None else sum(self.dsv4["by_state"].values()) + int(self.dsv4["health_checks"])


@dataclass(frozen=True)
class Scrape:
    """One answer of prefill's /metrics, asked and answered when: the sum over the series of each name that matters."""

    asked_s: float
    told_s: float
    values: Mapping[str, float]

    @property
    def gauge(self) -> float | None:
        """SGLang's own gauge of the inflight queue."""
        return self.values.get(STOCK_GAUGE)

    @property
    def ours(self) -> float | None:
        """Our count of requests and health checks inflight; None without the metrics."""
        counts = [self.values.get("dsv4_inflight_requests"), self.values.get("dsv4_inflight_health_checks")]
        return None if counts[0] is None or counts[1] is None else counts[0] + counts[1]


_SERIES = re.compile(r"^([a-z0-9_:]+)(?:\{[^}]*\})? (\S+)$")
_WANTED = ("dsv4_inflight_", STOCK_GAUGE)


def parse_metrics(text: str) -> dict[str, float]:
    """The sum of the series of each metric of ours and of SGLang's inflight gauge, by name."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith(_WANTED) and (match := _SERIES.match(line)):
            name, value = match.groups()
            found[name] = found.get(name, 0.0) + float(value)
    return found


@dataclass
class Watch:
    """Samples of prefill, taken in the background for as long as `watch` runs."""

    stack: FaultStack
    loads: list[Load] = field(default_factory=list)
    scrapes: list[Scrape] = field(default_factory=list)

    async def watch(self, client: httpx.AsyncClient) -> None:
        """Sample until cancelled. A worker that does not answer gives no sample."""
        await asyncio.gather(self._watch_loads(client), self._watch_metrics(client))

    async def _watch_loads(self, client: httpx.AsyncClient) -> None:
        published = None
        while True:
            told = await self._get(client, LOADS)
            if told is not None and (found := told.json()["loads"]):
                load = found[0]
                inflight = int(load["disaggregation"]["prefill_inflight_queue_reqs"])
                fresh = load["timestamp"] != published
                published = load["timestamp"]
                self.loads.append(Load(time.monotonic(), inflight, load.get("dsv4"), fresh))
            await asyncio.sleep(LOADS_EVERY_S)

    async def _watch_metrics(self, client: httpx.AsyncClient) -> None:
        while True:
            asked_s = time.monotonic()
            told = await self._get(client, "/metrics")
            if told is not None:
                self.scrapes.append(Scrape(asked_s, time.monotonic(), parse_metrics(told.text)))
            await asyncio.sleep(METRICS_EVERY_S)

    async def _get(self, client: httpx.AsyncClient, path: str) -> httpx.Response | None:
        try:
            told = await client.get(self.stack.workers["prefill"].url + path, timeout=ANSWER_WITHIN_S)
        except httpx.HTTPError:
            return None
        return told if told.status_code == httpx.codes.OK else None


_LOAD_FIGURES = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
_DSV4_FIGURES = (
    "kv_available_tokens",
    "request_rows_available",
    "metadata_buffers_available",
    "rooms",
    "inflight",
    "settling",
)


async def holdings(client: httpx.AsyncClient, stack: FaultStack, role: Role) -> dict[str, int] | None:
    """What a worker holds now: queues, tokens, and with the patches pages, rows, buffers, rooms. None: no answer."""
    url = stack.workers[role].url
    try:
        told = await client.get(f"{url}/v1/loads?include=disagg,queues", timeout=ANSWER_WITHIN_S)
        described = await client.get(f"{url}/server_info", timeout=ANSWER_WITHIN_S)
    except httpx.HTTPError:
        return None
    if told.status_code != httpx.codes.OK or described.status_code != httpx.codes.OK or not told.json()["loads"]:
        return None
    load = told.json()["loads"][0]
    figures = {name: int(load[name]) for name in _LOAD_FIGURES}
    for section in ("disaggregation", "queues"):
        figures |= {
            name: int(value) for name, value in load[section].items() if name.endswith("_reqs") or section == "queues"
        }
    ours = (described.json().get("internal_states") or [{}])[0].get("dsv4", {})
    return figures | {name: int(ours[name]) for name in _DSV4_FIGURES if name in ours}
