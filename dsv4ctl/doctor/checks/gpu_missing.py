"""A GPU that the profile names and the driver does not show."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, gpus, missing, short
from dsv4ctl.doctor.looks.pci import PCI, gpus_on_bus
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    there = gpus(patient.box)
    known = {short(gpu.pci_bus_id) for gpu in there} or {""}
    lost = sorted(gpus_on_bus(patient.box).keys() - known)
    for worker in patient.engines:
        names = ", ".join(str(item) for item in missing(worker, there))
        if not names:
            continue
        message = f"GPU {names} of {worker.name} is not there: the driver shows {len(there)}"
        if lost:
            message += f", and {', '.join(lost)} on the PCI bus is none of them"
        if lost and lost[0] < max(known) and any(isinstance(gpu, int) for gpu in worker.gpus):
            message += ". Those behind it have moved up: a number means another card than before"
        yield Fault(
            message,
            {"worker": worker.name, "missing": names, "shown": len(there), "lost": ", ".join(lost) or None},
        )


CHECK = Check(
    "GPU_MISSING",
    Severity.ERROR,
    "Is every GPU there that the profile names?",
    "look for the card in `dmesg | grep -i -e NVRM -e Xid -e pcieport`, and boot again or seat it again; or correct "
    "`gpus` in the profile",
    "",
    (GPUS, PCI),
    _find,
    wants_gpus,
)
