"""A plan for GPUs on a host without NVIDIA's driver."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import DRIVER, driver
from dsv4ctl.doctor.looks.pci import PCI, gpus_on_bus
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    found = driver(patient.box)
    # nvidia-smi loads the module itself when it is asked, so that one of the two is enough.
    if found.version is None and not found.has_smi:
        cards = len(gpus_on_bus(patient.box))
        yield Fault(
            f"NVIDIA's driver is not installed: no kernel module is loaded, and there is no nvidia-smi. "
            f"{cards or 'No'} NVIDIA GPU{'' if cards == 1 else 's'} on the PCI bus",
            {"cards_on_the_bus": cards},
        )


CHECK = Check(
    "DRIVER_MISSING",
    Severity.ERROR,
    "Is NVIDIA's driver there?",
    "install the driver (570 or newer for RTX PRO 6000, with the open kernel modules), or choose a profile for this "
    "machine",
    "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html",
    (DRIVER, PCI),
    _find,
    wants_gpus,
)
