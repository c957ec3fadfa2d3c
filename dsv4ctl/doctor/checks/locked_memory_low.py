"""A limit of locked memory on a host whose UCX may use RDMA, which locks every buffer that it registers."""

from collections.abc import Iterator

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.limits import RDMA, UNLIMITED, limits_of_engines, limits_question, rdma_devices
from dsv4ctl.doctor.looks.plan import RDMA_TRANSPORTS, transports, ucx_workers
from dsv4ctl.findings import Severity
from dsv4ctl.stack import Worker


def _may_use_rdma(worker: Worker) -> bool:
    named = transports(worker)
    return not named or named[0].startswith("^") or not RDMA_TRANSPORTS.union({"all"}).isdisjoint(named)


def _may_use_device(worker: Worker, device: str) -> bool:
    """By UCX_NET_DEVICES, a list such as `mlx5_0:1,lo` that names interfaces as well."""
    names = [name.partition(":")[0].strip() for name in worker.env.get("UCX_NET_DEVICES", "").split(",")]
    return names == [""] or "all" in names or names[0].startswith("^") or device in names


def _uses_rdma(patient: Patient) -> bool:
    return any(_may_use_rdma(worker) for worker in ucx_workers(patient))


def _questions(patient: Patient) -> tuple[Question, ...]:
    return (RDMA, *limits_question(patient))


def _find(patient: Patient) -> Iterator[Fault]:
    workers = [worker for worker in ucx_workers(patient) if _may_use_rdma(worker)]
    there = rdma_devices(patient.box)
    devices = [device for device in there if any(_may_use_device(worker, device) for worker in workers)]
    if not devices:
        return
    limits = limits_of_engines(patient)
    soft, hard = limits.locked
    if soft != UNLIMITED:
        yield Fault(
            f"an engine may lock {soft // 1024} KiB of memory (so {limits.source}), and UCX may use "
            f"{', '.join(devices)}: it cannot register KV there",
            {"soft_bytes": soft, "hard_bytes": None if hard == UNLIMITED else hard, "devices": ", ".join(devices)},
        )


CHECK = Check(
    "LOCKED_MEMORY_LOW",
    Severity.WARNING,
    "May UCX lock the memory that it registers?",
    "set memlock to unlimited in /etc/security/limits.d, DefaultLimitMEMLOCK=infinity in /etc/systemd/user.conf; or "
    "keep UCX from RDMA with UCX_TLS or UCX_NET_DEVICES",
    "https://github.com/openucx/ucx/blob/master/docs/source/running.md",
    _questions,
    _find,
    _uses_rdma,
)
