"""Settings for SM120 on cards that are none."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, planned, takes
from dsv4ctl.doctor.looks.plan import gpu_workers
from dsv4ctl.findings import Severity

_PREFIX = "SGLANG_SM120_"
_CAPABILITY = "12.0"


def _sets_knobs(patient: Patient) -> bool:
    return any(name.startswith(_PREFIX) for worker in gpu_workers(patient) for name in worker.env)


def _find(patient: Patient) -> Iterator[Fault]:
    there = planned(patient)
    for worker in gpu_workers(patient):
        knobs = sorted(name for name in worker.env if name.startswith(_PREFIX))
        own = [gpu for gpu in there if takes(worker, gpu)]
        other = [gpu for gpu in own if gpu.compute_capability != _CAPABILITY]
        if knobs and other:
            kinds = ", ".join(sorted({gpu.compute_capability for gpu in other}))
            yield Fault(
                f"{worker.name} has {', '.join(knobs)}, for cards of compute capability {_CAPABILITY}, and "
                f"{', '.join(gpu.named for gpu in other)} {'is' if len(other) == 1 else 'are'} of {kinds}",
                {"worker": worker.name, "knobs": ", ".join(knobs), "compute_capability": kinds},
            )


CHECK = Check(
    "SM120_KNOBS_IDLE",
    Severity.WARNING,
    "Are the settings for SM120 on SM120 cards?",
    "take the variables out of the profile for this machine: they do nothing on other cards",
    "https://developer.nvidia.com/cuda-gpus",
    (GPUS,),
    _find,
    _sets_knobs,
)
