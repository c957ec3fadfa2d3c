"""What a running stack has, against what it should have: configuration, patches, the pair, timers, the KV transfer."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsv4ctl.chain import read_chain
from dsv4ctl.doctor.timer_order import order_findings, unread_findings
from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.health import stack_status
from dsv4ctl.metrics.exposition import Exposition, Unreadable, parse_exposition
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.restart.agreement import disagreements, settings_of
from dsv4ctl.restart.patch_table import METRIC, Table, differences, expected_table

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place
    from dsv4ctl.state import WorkerRecord
    from dsv4ctl.targets import Target

HTTP_TIMEOUT_S = 5.0
SLOW_GB_S = 1.0
"""Between GPUs of one host KV moves at tens of GB/s over PCIe, and through host memory over TCP at well under one
(https://github.com/ai-dynamo/nixl/issues/1754)."""

_SPEED = "kv_transfer_speed_gb_s"
_TOLD = 3


def running_findings(target: "Target") -> tuple[Finding, ...]:
    """Everything but the generations. One look; nothing is changed.

    Raises:
        HostUnreachable: a host could not be asked.
    """
    findings = list(stack_status(target).findings)
    members = [(host, worker) for host, record in target.records for worker in record.workers]
    metrics = {worker.name: _metrics(target.fleet[host], worker) for host, worker in members if worker.role != ROUTER}
    for host, worker in members:
        if worker.role != ROUTER:
            findings += _patches(target.fleet[host], worker, metrics[worker.name])
    findings += _pair(target, members)
    chain = read_chain(target)
    findings += order_findings(chain.timers)
    findings += unread_findings([one for one in chain.unread if one.runs])
    findings += _transfer(members, metrics)
    return tuple(findings)


def _metrics(place: "Place", worker: "WorkerRecord") -> Exposition | None:
    import httpx

    try:
        with place.host.http(timeout_s=HTTP_TIMEOUT_S) as client:
            response = client.get(f"{_url(worker)}/metrics")
            return parse_exposition(response.text) if response.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, Unreadable):
        return None


def _url(worker: "WorkerRecord") -> str:
    return f"http://{worker.listen}:{worker.port}"


def _patches(place: "Place", worker: "WorkerRecord", metrics: Exposition | None) -> list[Finding]:
    told = [] if metrics is None else [point for point in metrics.named(METRIC) if point.value]
    evidence = {"worker": worker.name, "host": place.name}
    if metrics is None:
        message = f"which patches {worker.name} on {place.name} applied cannot be seen: its /metrics gives no answer"
        remedy = "set args.enable-metrics = true in the profile; `dsv4ctl status` says whether it runs"
        return [Finding("PATCHES_UNSEEN", Severity.UNKNOWN, message, remedy, evidence)]
    running: Table = {point.labels["patch"]: point.labels["status"] for point in told}
    try:
        expected = expected_table(place.host, place.site.python, worker.env)
    except (OperationFailed, DeadlineExceeded) as error:
        message = f"which patches {worker.name} on {place.name} should have is not known: {error}"
        remedy = "install dsv4ctl beside the engine on that host"
        return [Finding("PATCHES_UNSEEN", Severity.UNKNOWN, message, remedy, evidence)]
    wrong = differences(expected, running)
    if not wrong:
        return []
    more = f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
    return [
        Finding(
            "PATCHES_DIFFER",
            Severity.ERROR,
            f"{worker.name} on {place.name} does not have the patches it should have: {'; '.join(wrong[:_TOLD])}{more}",
            "restart it with `dsv4ctl co-restart`; its log says why a patch was left out",
            {**evidence, "differ": len(wrong)},
        )
    ]


def _pair(target: "Target", members: "Sequence[tuple[str, WorkerRecord]]") -> list[Finding]:
    settings = []
    for host, worker in members:
        if worker.role in {"prefill", "decode"}:
            with target.fleet[host].host.http(timeout_s=HTTP_TIMEOUT_S) as client:
                told = settings_of(client, worker.name, worker.role, _url(worker), worker.argv)
            settings += [told] if told is not None else []
    return list(disagreements(settings))


def _transfer(members: "Sequence[tuple[str, WorkerRecord]]", metrics: Mapping[str, Exposition | None]) -> list[Finding]:
    """KV_TRANSFER_SLOW where GPUs of one host exchange KV at the speed of TCP."""
    engines = [(host, worker) for host, worker in members if worker.role in {"prefill", "decode"}]
    on_gpus = all(worker.env.get("CUDA_VISIBLE_DEVICES") for _, worker in engines)
    if not engines or not on_gpus or len({host for host, _ in engines}) > 1:
        return []
    found: list[Finding] = []
    for _, worker in engines:
        exposition = metrics.get(worker.name)
        speeds = exposition.buckets(_SPEED) if exposition is not None else None
        bound = speeds.quantile_bound(0.5) if speeds is not None and speeds.count else None
        if speeds is None or bound is None or not math.isfinite(bound) or bound >= SLOW_GB_S:
            continue
        found.append(
            Finding(
                "KV_TRANSFER_SLOW",
                Severity.WARNING,
                f"half of the {int(speeds.count)} KV transfers of {worker.name} went at less than {bound:g} GB/s, "
                "between GPUs of one host: that is TCP through host memory",
                "`dsv4ctl doctor --deep` names the lane; see docs/hazards.md on expandable segments and cuda_ipc",
                {"worker": worker.name, "median_below_gb_s": bound, "transfers": int(speeds.count)},
            )
        )
    return found
