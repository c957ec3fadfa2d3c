"""A GPU that talks over fewer lanes than it could: a riser, a bifurcation setting, a card not seated well."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS, planned
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    for gpu in planned(patient):
        width, width_max = gpu.link_width, gpu.link_width_max
        if width is not None and width_max is not None and width < width_max:
            yield Fault(
                f"{gpu.named} has {width} PCIe lanes of {width_max}: KV and all-reduce run at {width / width_max:.0%}",
                {"gpu": gpu.index, "lanes": width, "lanes_max": width_max},
            )


CHECK = Check(
    "PCIE_LINK_NARROW",
    Severity.WARNING,
    "Has every GPU all its PCIe lanes?",
    "seat the card again, and look at the riser and at the slot's bifurcation in the BIOS",
    "",
    (GPUS,),
    _find,
)
