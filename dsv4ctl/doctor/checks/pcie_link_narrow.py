"""A GPU that talks over fewer lanes than it could: a riser, a bifurcation setting, a card not seated well."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS
from dsv4ctl.doctor.looks.pci import LINK_BY_HAND, PCI, planned_cards
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    untold = []
    for card in planned_cards(patient):
        gpu, place = card.gpu, card.place
        # nvidia-smi's maximum is that of card and slot together, and the kernel's is the card's own.
        width = (gpu.link_width if gpu is not None else None) or place.device.width
        widest = place.device.width_max or (gpu.link_width_max if gpu is not None else None)
        if width is None or widest is None:
            untold.append(card.named)
        elif width < widest:
            slot = place.slot.width_max if place.slot is not None else None
            why = f", as the slot has {slot}" if slot is not None and slot <= width else ""
            yield Fault(
                f"{card.named} has {width} PCIe lanes of {widest}{why}: KV and all-reduce run at {width / widest:.0%}",
                {"gpu": card.index, "lanes": width, "lanes_max": widest, "lanes_of_the_slot": slot},
            )
    if untold:
        raise Unseen(f"neither nvidia-smi nor the kernel tells the lanes of {', '.join(untold)}", LINK_BY_HAND)


CHECK = Check(
    "PCIE_LINK_NARROW",
    Severity.WARNING,
    "Has every GPU all its PCIe lanes?",
    "seat the card again, and look at the riser and at the slot's bifurcation in the BIOS",
    "",
    (GPUS, PCI),
    _find,
    wants_gpus,
)
