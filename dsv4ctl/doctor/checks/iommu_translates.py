"""An IOMMU that translates the addresses of the GPUs."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPUS
from dsv4ctl.doctor.looks.kernel import KERNEL, kernel
from dsv4ctl.doctor.looks.pci import PCI, planned_cards
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

_PASSED_THROUGH = frozenset({"iommu=pt", "iommu=off", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off"})


def _find(patient: Patient) -> Iterator[Fault]:
    translated = []
    for card in planned_cards(patient):
        device = card.place.device
        if not device.has_iommu or device.iommu == "identity":
            continue
        if device.iommu is None:
            # Kernels before 5.11 do not tell the type of a group.
            if _PASSED_THROUGH.isdisjoint(kernel(patient.box).cmdline):
                raise Unseen(f"{card.named} has an IOMMU, and the kernel does not tell whether it translates")
            continue
        translated.append((card.named, device.iommu))
    if translated:
        named = ", ".join(name for name, _ in translated)
        kinds = ", ".join(sorted({kind for _, kind in translated}))
        yield Fault(
            f"the IOMMU translates what these send and receive (mode {kinds}): {named}. Copies from peer to peer may "
            "then be slow, hang, or carry wrong data",
            {"mode": kinds, "gpus": named},
        )


CHECK = Check(
    "IOMMU_TRANSLATES",
    Severity.WARNING,
    "Does the IOMMU let the GPUs' copies pass as they are?",
    "boot with iommu=pt on the kernel's command line (or turn the IOMMU off in the BIOS), and let P2P be proved with "
    "data: `dsv4ctl doctor --deep`",
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    (GPUS, KERNEL, PCI),
    _find,
    wants_gpus,
)
