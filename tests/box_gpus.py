"""Eight RTX PRO 6000 as nvidia-smi tells of them, and as they hang on the PCI bus."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

BUS_IDS = ("01", "11", "21", "31", "81", "91", "a1", "b1")
GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
DRIVER = "595.45.04"
MEMORY_MIB = 97887

_GEN = {1: "2.5 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6


@dataclass(frozen=True)
class Card:
    """One GPU as nvidia-smi prints it."""

    name: str = GPU_NAME
    memory_mib: int = MEMORY_MIB
    capability: str = "12.0"
    gen: int = 1
    lanes: int = 16
    pstate: str = "P8"
    bar1_mib: int = 131072


def uuid(index: int) -> str:
    """The name that the driver has for a GPU."""
    return f"GPU-0000000{index}"


def nvidia_smi(
    odd: Mapping[int, Card | None] | None = None, users: str = "", driver: str = DRIVER, path: str = "NODE"
) -> dict[str, str]:
    """What nvidia-smi prints of the eight cards.

    `odd` are those that are not like the others, by index; None for one that has fallen off, behind which the others
    move up. `path` is between GPUs of one socket.
    """
    gpus, brief, bar1 = [], [], ["", "==============NVSMI LOG==============", ""]
    there = [(bus, (odd or {}).get(at, Card())) for at, bus in enumerate(BUS_IDS)]
    cards = [(bus, card) for bus, card in there if card is not None]
    for index, (bus, card) in enumerate(cards):
        gpus.append(
            f"{index}, {uuid(index)}, 00000000:{bus.upper()}:00.0, {card.name}, {driver}, {card.memory_mib}, "
            f"{card.capability}, {card.gen}, 5, {card.lanes}, 16, {card.pstate}"
        )
        brief.append(f"{index}, 00000000:{bus.upper()}:00.0, {card.memory_mib}, {uuid(index)}, {driver}")
        bar1 += [
            f"GPU 00000000:{bus.upper()}:00.0",
            "    FB Memory Usage",
            f"        Total                             : {card.memory_mib} MiB",
            "    BAR1 Memory Usage",
            f"        Total                             : {card.bar1_mib} MiB",
            "        Used                              : 1 MiB",
        ]
    head = "\t".join(["", *(f"GPU{index}" for index in range(len(cards))), "CPU Affinity", "NUMA Affinity"])
    rows = []
    for row, (bus, _) in enumerate(cards):
        near = [other < "80" for other, _ in cards]
        cells = ["X" if at == row else path if near[at] == (bus < "80") else "SYS" for at in range(len(cards))]
        rows.append("\t".join([f"GPU{row}", *(f" {cell} " for cell in cells), "0-63", "0"]))
    legend = "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect"
    matrix = f"\x1b[4m{head}\x1b[0m\n" + "\n".join(rows) + f"\n\n{legend}\n"
    lines = {"gpus": gpus, "cards": brief, "bar1": bar1}
    return {**{name: "\n".join(each) + "\n" for name, each in lines.items()}, "topology": matrix, "users": users}


def config(kind: int, *, aspm: int = 0, acs: int | None = None, whole: bool = True) -> bytes:
    """The configuration space of a PCI Express device: of that kind of port, its ASPM control and ACS control.

    Without `whole`, what the kernel shows to a user who is not root.
    """
    space = bytearray(4096)
    space[0x34] = 0x60
    space[0x60:0x64] = bytes([0x10, 0, 2 | kind << 4, 0])
    space[0x70] = aspm
    space[0x100:0x104] = (0x2A0 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    if acs is not None:
        space[0x2A0:0x2A4] = (1 << 16 | 0x000D).to_bytes(4, "little")
        space[0x2A6:0x2A8] = acs.to_bytes(2, "little")
    return bytes(space if whole else space[:64])


@dataclass(frozen=True)
class Port:
    """A device on the bus, `above` it the next one, up to the root (empty for a root port)."""

    bus_id: str
    above: tuple[str, ...] = ()
    kind: int = 0
    vendor: str = "0x1022"
    device: str = "0x14a1"
    node: int = 0
    gen: int = 1
    gen_max: int = 5
    lanes: int = 16
    lanes_max: int = 16
    iommu: str | None = "identity"
    power: str = "on"
    config: bytes = b""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where its files are."""
        root = (*self.above, self.bus_id)[0].rpartition(":")[0]
        return "/".join([f"sys/devices/pci{root}", *self.above, self.bus_id])

    @property
    def is_gpu(self) -> bool:
        """Whether it is a card, and no bridge."""
        return self.kind == 0

    def files(self) -> Iterator[tuple[str, str, str | bytes]]:
        """Directory, name and content of each of its files."""
        content: dict[str, str] = {
            "vendor": "0x10de" if self.is_gpu else self.vendor,
            "class": "0x030000" if self.is_gpu else "0x060400",
            "device": self.device,
            "numa_node": str(self.node),
            "current_link_width": str(self.lanes),
            "max_link_width": str(self.lanes_max),
            "current_link_speed": _GEN[self.gen],
            "max_link_speed": _GEN[self.gen_max],
            "power/control": self.power,
            **self.more,
        }
        for name, text in content.items():
            yield self.path, name, f"{text}\n"
        yield self.path, "config", self.config
        if self.iommu is not None:
            yield f"sys/kernel/iommu_groups/{self.bus_id}", "type", f"{self.iommu}\n"

    def links(self) -> Iterator[tuple[str, str]]:
        """Its links, and where they lead."""
        yield f"sys/bus/pci/devices/{self.bus_id}", f"../../../../{self.path}"
        if self.iommu is not None:
            up = "../" * self.path.count("/")
            yield f"{self.path}/iommu_group", f"{up}../sys/kernel/iommu_groups/{self.bus_id}"


def topology(
    cards: Mapping[int, Mapping[str, Any]] | None = None, slots: Mapping[int, Mapping[str, Any]] | None = None
) -> list[Port]:
    """Each card on a root port of its own, whose ACS is on, as the kernel turns it on with iommu=pt.

    `cards` has what is different on some cards, `slots` on the ports above some, by the card's index.
    """
    found = []
    for index, bus in enumerate(BUS_IDS):
        node = 0 if index < 4 else 1
        slot = Port(f"0000:{int(bus, 16) - 1:02x}:01.1", kind=ROOT_PORT, node=node, config=config(ROOT_PORT, acs=0x1D))
        card = Port(f"0000:{bus}:00.0", (slot.bus_id,), device="0x2bb1", node=node, config=config(0))
        found += [replace(slot, **(slots or {}).get(index, {})), replace(card, **(cards or {}).get(index, {}))]
    return found


def switched(*, acs: int) -> list[Port]:
    """The first two cards behind one switch, whose downstream ports have that ACS control, and the others as ever."""
    root, up = "0000:00:01.1", "0000:f0:00.0"
    found = topology()[4:]
    found.append(Port(root, kind=ROOT_PORT, config=config(ROOT_PORT, acs=0x1D)))
    found.append(Port(up, (root,), kind=UPSTREAM, config=config(UPSTREAM)))
    for slot, bus in enumerate(BUS_IDS[:2]):
        down = f"0000:f1:{slot:02x}.0"
        found.append(Port(down, (root, up), kind=DOWNSTREAM, config=config(DOWNSTREAM, acs=acs)))
        found.append(Port(f"0000:{bus}:00.0", (root, up, down), device="0x2bb1", config=config(0)))
    return found
