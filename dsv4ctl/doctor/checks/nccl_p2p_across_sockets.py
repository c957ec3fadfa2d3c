"""NCCL's P2P across sockets: some boxes hang with it, in silence."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, TOPOLOGY
from dsv4ctl.doctor.looks.nccl import VARIABLE, p2p_level, pairs, sets_level
from dsv4ctl.doctor.looks.plan import gpu_workers, ranks
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in gpu_workers(patient):
        if p2p_level(worker) != "SYS" or ranks(worker) < 2:
            continue
        across = [(one, other) for one, other, path in pairs(patient, worker) if path == "SYS"]
        if across:
            one, other = across[0]
            yield Fault(
                f"{VARIABLE}={worker.env[VARIABLE]} of {worker.name} makes NCCL copy from peer to peer across the "
                f"sockets ({len(across)} pairs, such as {one.named} and {other.named})",
                {"worker": worker.name, "pairs": len(across)},
            )


CHECK = Check(
    "NCCL_P2P_ACROSS_SOCKETS",
    Severity.WARNING,
    "Does NCCL's P2P stay within a socket?",
    "give the worker GPUs of one socket; or prove it on this box with `dsv4ctl doctor --deep`; with PHB instead NCCL "
    "goes through host memory between the sockets",
    "https://github.com/local-inference-lab/rtx6kpro/blob/main/troubleshooting/common-issues.md",
    (GPUS, TOPOLOGY),
    _find,
    sets_level,
)
