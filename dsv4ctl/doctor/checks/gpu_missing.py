"""A GPU that the profile names and the driver does not show."""

from collections.abc import Iterator, Sequence

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, Gpu, gpus, missing, open_items, short
from dsv4ctl.doctor.looks.pci import PCI, gpus_on_bus
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity
from dsv4ctl.profile.gpus import is_gpu


def _find(patient: Patient) -> Iterator[Fault]:
    there = gpus(patient.box)
    known = {short(gpu.pci_bus_id) for gpu in there} or {""}
    lost = sorted(gpus_on_bus(patient.box).keys() - known)
    yield from _short(patient, there)
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


def _short(patient: Patient, there: Sequence[Gpu]) -> Iterator[Fault]:
    """A fault for each worker that asks for more of the nearest to a node than there are left for it."""
    asking = {worker.name: items for worker in patient.engines if (items := open_items(worker))}
    named = [item for worker in patient.engines for item in worker.gpus]
    free = [gpu for gpu in there if not any(is_gpu(item, gpu) for item in named)]
    if sum(item.count for items in asking.values() for item in items) <= len(free):
        return
    for name, items in asking.items():
        wanted = " and ".join(f"{item.count} nearest to node {item.node}" for item in items)
        yield Fault(
            f"{name} asks for the {wanted}, and not so many GPUs are left for it: the driver shows {len(there)}",
            {"worker": name, "missing": f"the {wanted}", "shown": len(there), "lost": None},
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
