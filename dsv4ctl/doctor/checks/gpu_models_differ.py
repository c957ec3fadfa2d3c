"""GPUs of several models in one worker: the slowest sets the pace, and the smallest the memory."""

from collections import Counter
from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, own_gpus, planned
from dsv4ctl.doctor.looks.plan import gpu_workers, wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    there = planned(patient)
    for worker in gpu_workers(patient):
        if len({(gpu.name, gpu.memory_mib) for gpu in there}) < 2:
            return
        own = own_gpus(worker, there)
        kinds = Counter((gpu.name, gpu.memory_mib) for gpu in own)
        if len(kinds) > 1:
            (usual, _), *_ = kinds.most_common(1)
            odd = [gpu for gpu in own if (gpu.name, gpu.memory_mib) != usual]
            words = ", ".join(f"{gpu.named} is {gpu.name} with {gpu.memory_mib} MiB" for gpu in odd)
            yield Fault(
                f"the GPUs of {worker.name} are not all the same: {words}; the others are {usual[0]} with "
                f"{usual[1]} MiB",
                {"worker": worker.name, "odd": ", ".join(str(gpu.index) for gpu in odd)},
            )


CHECK = Check(
    "GPU_MODELS_DIFFER",
    Severity.WARNING,
    "Are all GPUs of a worker the same?",
    "give each worker GPUs of one model; SGLang takes the memory of the smallest for all",
    "",
    (GPUS,),
    _find,
    wants_gpus,
)
