"""BAR1 far below the card's memory: peer access maps memory through it."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import BAR1, GPUS, bar1_mib, planned, short
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    sizes = bar1_mib(patient.box)
    untold = []
    for gpu in planned(patient):
        size = sizes.get(short(gpu.pci_bus_id))
        if size is None:
            untold.append(gpu.named)
        elif size < gpu.memory_mib:
            yield Fault(
                f"{gpu.named} has a BAR1 of {size} MiB for {gpu.memory_mib} MiB of memory",
                {"gpu": gpu.index, "bar1_mib": size, "memory_mib": gpu.memory_mib},
            )
    if untold:
        raise Unseen(f"{BAR1.name} tells no BAR1 of {', '.join(untold)}")


CHECK = Check(
    "BAR1_SMALL",
    Severity.WARNING,
    "Can each GPU's memory be mapped whole by its peers (BAR1)?",
    "turn on Above 4G Decoding and Resizable BAR in the BIOS",
    "https://github.com/local-inference-lab/rtx6kpro/blob/main/hardware/topology.md",
    (GPUS, BAR1),
    _find,
    wants_gpus,
)
