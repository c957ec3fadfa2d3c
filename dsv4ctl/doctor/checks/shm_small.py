"""A /dev/shm that is too small for NCCL and the engine's queues."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.memory import SHM, shm
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

LEAST_BYTES = 1024**3
"""What NVIDIA gives a container for NCCL. Docker gives 64 MiB when nobody asks."""

_MIB = 1024**2


def _find(patient: Patient) -> Iterator[Fault]:
    found = shm(patient.box)
    if found.free < LEAST_BYTES:
        yield Fault(
            f"there are {found.free // _MIB} MiB free in /dev/shm, of {found.total // _MIB} MiB: an engine that finds "
            "no room there does not start, or dies of a bus error",
            {"free_bytes": found.free, "total_bytes": found.total, "needed_bytes": LEAST_BYTES},
        )


CHECK = Check(
    "SHM_SMALL",
    Severity.WARNING,
    "Is there room in /dev/shm?",
    "look what fills it (`ls -lS /dev/shm`), or make it larger: `mount -o remount,size=16g /dev/shm`, in a container "
    "--shm-size=16g or --ipc=host",
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    (SHM,),
    _find,
    wants_gpus,
)
