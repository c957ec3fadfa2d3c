"""The closed kernel modules, which do not run a Blackwell card."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import DRIVER, driver, version_text
from dsv4ctl.doctor.looks.pci import PCI, blackwells
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    found = driver(patient.box)
    if found.is_open or (found.version is None and not found.has_smi):
        return
    if cards := blackwells(patient.box):
        if found.version is None:
            raise Unseen(
                "there is an nvidia-smi, and no /proc/driver/nvidia/version, which names the modules that are loaded",
                "`modinfo -F license nvidia` on the machine itself says Dual MIT/GPL for the open ones",
            )
        version = version_text(found.version)
        yield Fault(
            f"driver {version} was loaded with its closed kernel modules, and {', '.join(cards)} run with the open "
            "ones alone",
            {"driver": version, "cards": len(cards)},
        )


CHECK = Check(
    "DRIVER_CLOSED",
    Severity.ERROR,
    "Are the kernel modules those that the GPUs need?",
    "install the driver's package with `open` in its name (nvidia-driver-...-open), and boot again",
    "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html",
    (DRIVER, PCI),
    _find,
    wants_gpus,
)
