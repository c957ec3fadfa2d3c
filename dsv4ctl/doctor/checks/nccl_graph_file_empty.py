"""NCCL_GRAPH_FILE without a name in it."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import gpu_workers, ranks, wants_gpus
from dsv4ctl.findings import Severity

_VARIABLE = "NCCL_GRAPH_FILE"


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in gpu_workers(patient):
        if worker.env.get(_VARIABLE) == "" and ranks(worker) > 1:
            yield Fault(
                f"{_VARIABLE} of {worker.name} is set and empty: NCCL opens a file of that name, and cannot start",
                {"worker": worker.name},
            )


CHECK = Check(
    "NCCL_GRAPH_FILE_EMPTY",
    Severity.ERROR,
    "Is NCCL_GRAPH_FILE left out, or a file?",
    "take NCCL_GRAPH_FILE out of the profile",
    "https://github.com/NVIDIA/nccl/blob/master/src/graph/search.cc",
    (),
    _find,
    wants_gpus,
)
