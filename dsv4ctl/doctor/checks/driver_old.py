"""A driver that is older than the card."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import DRIVER, GPUS, driver_version, version_text
from dsv4ctl.doctor.looks.pci import PCI, blackwells
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

LEAST = (570,)
"""The first driver for GB202, the chip of RTX PRO 6000 (Blackwell)."""


def _find(patient: Patient) -> Iterator[Fault]:
    version = driver_version(patient.box)
    if version is None or version >= LEAST:
        return
    if cards := blackwells(patient.box):
        yield Fault(
            f"driver {version_text(version)} is older than its GPUs: {', '.join(cards)} need {LEAST[0]} or newer",
            {"driver": version_text(version), "cards": len(cards), "needed": LEAST[0]},
        )


CHECK = Check(
    "DRIVER_OLD",
    Severity.ERROR,
    "Is the driver new enough for the GPUs?",
    "install driver 570 or newer, with the open kernel modules, and boot again",
    "https://docs.nvidia.com/datacenter/tesla/tesla-release-notes-570-133-20/index.html",
    (DRIVER, GPUS, PCI),
    _find,
    wants_gpus,
)
