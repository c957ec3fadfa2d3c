"""NCCL_P2P_LEVEL below what the box has: NCCL then goes through host memory."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, TOPOLOGY
from dsv4ctl.doctor.looks.nccl import SOURCE, VARIABLE, p2p_level, pairs, reaches, sets_level
from dsv4ctl.doctor.looks.plan import gpu_workers, ranks
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in gpu_workers(patient):
        level = p2p_level(worker)
        if level is None or ranks(worker) < 2:
            continue
        cut = [(one, other, path) for one, other, path in pairs(patient, worker) if not reaches(level, path)]
        if cut:
            one, other, path = cut[0]
            yield Fault(
                f"{VARIABLE}={worker.env[VARIABLE]} of {worker.name} turns NCCL's P2P off for {len(cut)} pairs of its "
                f"GPUs: the path from {one.named} to {other.named} is {path}, and the level {level} ends before it",
                {"worker": worker.name, "level": level, "path": path, "pairs": len(cut)},
            )


CHECK = Check(
    "NCCL_P2P_OFF",
    Severity.WARNING,
    "Does NCCL_P2P_LEVEL let a worker's GPUs talk to each other?",
    "set NCCL_P2P_LEVEL to the path of its GPUs (PHB within one socket; `nvidia-smi topo -m` shows it, NODE is PHB), "
    "or NCCL_P2P_DISABLE=1 where it is meant",
    SOURCE,
    (GPUS, TOPOLOGY),
    _find,
    sets_level,
)
