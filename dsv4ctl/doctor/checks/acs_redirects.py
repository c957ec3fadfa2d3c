"""A PCIe switch that sends what its GPUs say to each other up to the root and down again."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS
from dsv4ctl.doctor.looks.pci import PCI, SWITCH_DOWNSTREAM, planned_cards
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

_REQUESTS, _COMPLETIONS = 0x4, 0x8


def _find(patient: Patient) -> Iterator[Fault]:
    cards = planned_cards(patient)
    for card in cards:
        # A port matters where another GPU is behind the same switch: to all others the way is over the root anyway.
        for port, switch in zip(card.place.above, card.place.above[1:], strict=False):
            peers = [other.named for other in cards if other != card and switch in other.place.above]
            if not peers:
                continue
            express = port.express
            if express is None or express[1] != SWITCH_DOWNSTREAM:
                continue
            control = port.acs_control or 0
            if control & (_REQUESTS | _COMPLETIONS):
                yield Fault(
                    f"the switch port {port.bus_id} above {card.named} has ACS redirection on: what it says to "
                    f"{', '.join(peers)} behind the same switch goes over the root",
                    {"port": port.bus_id, "gpu": card.index, "acs_control": f"0x{control:04x}"},
                )


CHECK = Check(
    "ACS_REDIRECTS",
    Severity.WARNING,
    "Do GPUs behind one PCIe switch talk to each other directly?",
    "turn ACS off in the BIOS, or at every boot with `setpci -s PORT ECAP_ACS+6.w=0` (as root, in a unit that runs "
    "before the stack)",
    "https://github.com/local-inference-lab/rtx6kpro/blob/main/hardware/asus-esc8000a-e13p-broadcom-switches.md",
    (GPUS, PCI),
    _find,
    wants_gpus,
)
