"""A PCIe link of an older generation than the card's."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS
from dsv4ctl.doctor.looks.pci import LINK_BY_HAND, PCI, planned_cards
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

_AT_WORK = frozenset({"P0", "P1", "P2"})
"""Performance states in which the driver drives the link as fast as it goes. In a lower one it slows it on purpose."""


def _find(patient: Patient) -> Iterator[Fault]:
    untold = []
    for card in planned_cards(patient):
        gpu, place = card.gpu, card.place
        if place.device.speed is None and (gpu is None or gpu.link_gen is None or gpu.link_gen_max is None):
            untold.append(card.named)
        slot, own = place.slot.speed_max if place.slot is not None else None, place.device.speed_max
        if slot is not None and own is not None and slot < own:
            yield Fault(
                f"{card.named} could do {own:g} GT/s, and the port above it ({place.above[0].bus_id}) does {slot:g}",
                {"gpu": card.index, "gt_s": slot, "gt_s_max": own, "port": place.above[0].bus_id},
            )
        elif (
            gpu is not None
            and gpu.pstate in _AT_WORK
            and gpu.link_gen is not None
            and gpu.link_gen_max is not None
            and gpu.link_gen < gpu.link_gen_max
        ):
            yield Fault(
                f"{gpu.named} is at work ({gpu.pstate}) and its link runs as PCIe Gen{gpu.link_gen}, of "
                f"Gen{gpu.link_gen_max}",
                {"gpu": gpu.index, "gen": gpu.link_gen, "gen_max": gpu.link_gen_max, "pstate": gpu.pstate},
            )
    if untold:
        raise Unseen(
            f"neither nvidia-smi nor the kernel tells how fast the link of {', '.join(untold)} runs", LINK_BY_HAND
        )


CHECK = Check(
    "PCIE_LINK_SLOW",
    Severity.WARNING,
    "Does every GPU's PCIe link run as fast as it could?",
    "set the slot's link speed in the BIOS to the card's generation or to Auto; a riser or a cable for an older "
    "generation has to be changed",
    "",
    (GPUS, PCI),
    _find,
    wants_gpus,
)
