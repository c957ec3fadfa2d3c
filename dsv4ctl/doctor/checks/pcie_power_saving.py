"""PCIe links and ports that may fall asleep."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import AS_ROOT, Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS
from dsv4ctl.doctor.looks.kernel import KERNEL, kernel
from dsv4ctl.doctor.looks.pci import PCI, planned_cards
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

_SAVING = frozenset({"powersave", "powersupersave"})


def _find(patient: Patient) -> Iterator[Fault]:
    policy = kernel(patient.box).aspm_policy
    if policy in _SAVING:
        yield Fault(f"the kernel's ASPM policy is {policy}: it lets every PCIe link sleep", {"policy": policy})
        return
    for card in planned_cards(patient):
        place = card.place
        states = place.device.aspm_states
        if states is None and policy != "performance":
            raise Unseen(f"the kernel does not tell whether the link of {card.named} may sleep", AS_ROOT)
        if states:
            yield Fault(f"the link of {card.named} may sleep ({states})", {"gpu": card.index, "states": states})
        if place.slot is not None and place.slot.power == "auto" and place.device.power == "auto":
            yield Fault(
                f"{card.named} and the port above it ({place.slot.bus_id}) may be powered down while idle",
                {"gpu": card.index, "port": place.slot.bus_id},
            )


CHECK = Check(
    "PCIE_POWER_SAVING",
    Severity.WARNING,
    "Do the GPUs' PCIe links stay awake?",
    "boot with pcie_aspm=off pcie_port_pm=off on the kernel's command line, or turn ASPM off in the BIOS",
    "https://github.com/local-inference-lab/rtx6kpro/blob/main/troubleshooting/common-issues.md",
    (GPUS, KERNEL, PCI),
    _find,
    wants_gpus,
)
