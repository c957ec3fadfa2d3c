"""A worker with more ranks than GPUs."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, asked_for, gpus
from dsv4ctl.doctor.looks.plan import gpu_workers, ranks, wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in gpu_workers(patient):
        wanted = ranks(worker)
        have = asked_for(worker) or len(gpus(patient.box))
        if wanted > have:
            yield Fault(
                f"{worker.name} is to run {wanted} ranks (tp-size times pp-size), and has {have} "
                f"GPU{'' if have == 1 else 's'}",
                {"worker": worker.name, "ranks": wanted, "gpus": have},
            )


CHECK = Check(
    "GPU_TOO_FEW",
    Severity.ERROR,
    "Has every worker a GPU for each of its ranks?",
    "lower tp-size or pp-size, or give the worker more GPUs in the profile",
    "",
    (GPUS,),
    _find,
    wants_gpus,
)
