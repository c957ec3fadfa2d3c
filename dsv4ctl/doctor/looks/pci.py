"""GPUs on the PCI bus and the bridges above them, as the kernel shows them in /sys."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import AS_ROOT, Box, Patient, Unseen
from dsv4ctl.doctor.looks.gpus import Gpu, names_by_bus_id, planned, short, takes
from dsv4ctl.stack import Worker

# A device a paragraph: the GPU itself, then each bridge above it, the nearest first. Only `od` is a process of its own:
# it reads the configuration of a GPU whose ASPM the kernel does not tell, and of bridges below another one.
PCI = Question(
    "/sys/bus/pci",
    r"""
say() { if value= && read -r value <"$2" && [ -n "$value" ]; then printf '%s %s\n' "$1" "$value"; fi; }
is_pci() { case ${1##*/} in *:*:*.*) true ;; *) false ;; esac; }
tell() {
    printf '%s %s\n' "$1" "${2##*/}"
    for name in vendor device numa_node current_link_width max_link_width current_link_speed max_link_speed; do
        say $name "$2/$name"
    done
    say l0s "$2/link/l0s_aspm"; say l1 "$2/link/l1_aspm"; say power "$2/power/control"
    say iommu "$2/iommu_group/type"
    if [ -d "$2/iommu_group" ]; then echo "translated yes"; fi
    case $1 in gpu) [ ! -r "$2/link/l1_aspm" ] ;; *) is_pci "${2%/*}" ;; esac && od -An -v -tx1 "$2/config"
}
[ -d "$1/sys/bus/pci/devices" ] || { echo "there is no /sys/bus/pci" >&2; exit 1; }
for device in "$1"/sys/bus/pci/devices/*; do
    vendor= class=
    read -r vendor <"$device/vendor"; read -r class <"$device/class"
    case $vendor$class in 0x10de0x03*) ;; *) continue ;; esac
    device=$(cd -P "$device" && pwd)
    tell gpu "$device"
    while device=${device%/*}; is_pci "$device"; do tell bridge "$device"; done
done 2>/dev/null
:
""",
)

ROOT_PORT, SWITCH_UPSTREAM, SWITCH_DOWNSTREAM = 4, 5, 6
"""Kinds of PCI Express ports (PCI Express Capabilities Register, Device/Port Type)."""

LINK_BY_HAND = (
    "see LnkSta in `lspci -vv` as root: a link that tells nothing may be down; `dmesg` then has the card's fall"
)
"""What to do where nobody tells of a card's link."""

# Device ids as the PCI ID repository has them for GB202 (https://pci-ids.ucw.cz/read/PC/10de).
_GB202 = range(0x2B80, 0x2C00)
_QEMU = 0x1B36
_ACS = 0x000D
_EXPRESS = 0x10
_EXTENDED_AT = 0x100
# PCI shows the first 64 bytes of a device's configuration to everybody, and the rest to root.
_PUBLIC_BYTES = 64


@dataclass(frozen=True)
class Device:
    """A PCI device. Widths in lanes, speeds in GT/s; what the kernel does not tell is None.

    Attributes:
        numa_node: None also where the firmware does not say (-1).
        iommu: the type of its IOMMU group, such as `identity` or `DMA-FQ`; None where the kernel does not tell, which
            is no group at all when `has_iommu` is False.
        config: its configuration space, as far as we may read it.
    """

    bus_id: str
    vendor_id: int | None
    device_id: int | None
    numa_node: int | None
    width: int | None
    width_max: int | None
    speed: float | None
    speed_max: float | None
    l0s: bool | None
    l1: bool | None
    power: str | None
    has_iommu: bool
    iommu: str | None
    config: bytes

    @property
    def express(self) -> tuple[int, int] | None:
        """Where its PCI Express capability lies and which kind of port it is; None where it has none.

        Raises:
            Unseen: we may not read it.
        """
        if len(self.config) <= _PUBLIC_BYTES:
            raise Unseen(f"the configuration of {self.bus_id} is shown to root alone", AS_ROOT)
        at = next(_capabilities(self.config, _EXPRESS), None)
        return None if at is None or at + 0x12 > len(self.config) else (at, self.config[at + 2] >> 4)

    @property
    def acs_control(self) -> int | None:
        """Its ACS control register; None where it has no ACS.

        Raises:
            Unseen: we may not read it.
        """
        if len(self.config) <= _EXTENDED_AT:
            raise Unseen(f"the configuration of {self.bus_id} is shown to root alone", AS_ROOT)
        at = next(_extended_capabilities(self.config, _ACS), None)
        return None if at is None or at + 8 > len(self.config) else self.config[at + 6] | self.config[at + 7] << 8

    @property
    def aspm_states(self) -> str | None:
        """The power saving states that its link may enter (`L0s`, `L1`, `L0s and L1`, empty for none); None where
        nobody tells."""
        bits = self.aspm_bits
        if bits is None:
            return None
        return " and ".join(name for bit, name in ((1, "L0s"), (2, "L1")) if bits & bit)

    @property
    def aspm_bits(self) -> int | None:
        """The ASPM Control field of its Link Control Register, or the same as the kernel tells it."""
        if self.l0s is not None or self.l1 is not None:
            return bool(self.l0s) | bool(self.l1) << 1
        try:
            express = self.express
        except Unseen:
            return None
        return None if express is None else self.config[express[0] + 0x10] & 3


@dataclass(frozen=True)
class GpuOnBus:
    """A GPU and what is between it and the root of the bus, the nearest bridge first."""

    device: Device
    above: tuple[Device, ...]

    @property
    def slot(self) -> Device | None:
        """The port that it sits in; None on a virtual machine, whose ports are inventions."""
        return self.above[0] if self.above and self.above[0].vendor_id != _QEMU else None


@dataclass(frozen=True)
class Card:
    """A planned GPU: what the driver says of it, None where it is silent, and its place on the bus."""

    gpu: Gpu | None
    place: GpuOnBus

    @property
    def named(self) -> str:
        """How messages name it."""
        return self.gpu.named if self.gpu is not None else f"the GPU {self.place.device.bus_id}"

    @property
    def index(self) -> int | None:
        """The driver's number for it."""
        return self.gpu.index if self.gpu is not None else None

    def is_of(self, worker: Worker) -> bool | None:
        """Whether it is one of the worker's; None where the worker has numbers and nobody knows which this is."""
        if self.gpu is not None:
            return takes(worker, self.gpu)
        return takes(worker, _OnBus(self.place.device.bus_id)) if names_by_bus_id(worker) else None


@dataclass(frozen=True)
class _OnBus:
    """A GPU without a number."""

    pci_bus_id: str
    index: int = -1


def gpus_on_bus(box: Box) -> Mapping[str, GpuOnBus]:
    """Every NVIDIA GPU on the bus, by its PCI bus id; whether the driver knows it or not.

    Raises:
        Unseen
    """
    return box.read(PCI.name, parse_pci)


def blackwells(box: Box) -> tuple[str, ...]:
    """The PCI bus ids of cards with the chip GB202 (RTX PRO 6000, RTX 5090), whether the driver knows them or not.

    Raises:
        Unseen
    """
    found = gpus_on_bus(box)
    return tuple(bus_id for bus_id, gpu in found.items() if gpu.device.device_id in _GB202)


def planned_cards(patient: Patient) -> tuple[Card, ...]:
    """The planned GPUs with their place on the bus. Where the driver is silent: all that the profile may mean.

    Raises:
        Unseen: there is no GPU on the bus, or not one that the driver knows.
    """
    there = gpus_on_bus(patient.box)
    if not there:
        raise Unseen(
            "there is no NVIDIA GPU on the PCI bus", "choose a profile for that machine, or look for the cards"
        )
    try:
        known = planned(patient)
    except Unseen:
        cards = [Card(None, place) for place in there.values()]
        return tuple(card for card in cards if any(card.is_of(worker) is not False for worker in patient.engines))
    if hidden := [gpu.named for gpu in known if short(gpu.pci_bus_id) not in there]:
        raise Unseen(f"{', '.join(hidden)} cannot be found in /sys/bus/pci")
    return tuple(Card(gpu, there[short(gpu.pci_bus_id)]) for gpu in known)


def parse_pci(text: str) -> dict[str, GpuOnBus]:
    """Raises:
    ValueError
    """
    paragraphs: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("gpu", "bridge"):
            paragraphs.append((name, {"bus_id": value}))
        elif not name and paragraphs:
            # What `od` printed: a line for every 16 bytes of the configuration.
            words = paragraphs[-1][1]
            words["config"] = words.get("config", "") + value
        elif paragraphs:
            paragraphs[-1][1].setdefault(name, value)
        else:
            raise ValueError(f"{name!r} of no device")
    chains: list[list[Device]] = []
    for kind, words in paragraphs:
        if kind == "gpu":
            chains.append([])
        if not chains:
            raise ValueError("a bridge above nothing")
        chains[-1].append(_device(words))
    return {chain[0].bus_id: GpuOnBus(chain[0], tuple(chain[1:])) for chain in chains}


def _device(words: Mapping[str, str]) -> Device:
    node = _int(words.get("numa_node"))
    return Device(
        bus_id=words["bus_id"],
        vendor_id=_int(words.get("vendor"), 16),
        device_id=_int(words.get("device"), 16),
        numa_node=None if node is None or node < 0 else node,
        width=_lanes(words.get("current_link_width")),
        width_max=_lanes(words.get("max_link_width")),
        speed=_speed(words.get("current_link_speed")),
        speed_max=_speed(words.get("max_link_speed")),
        l0s=_switch(words.get("l0s")),
        l1=_switch(words.get("l1")),
        power=words.get("power"),
        has_iommu="translated" in words,
        iommu=words.get("iommu"),
        config=bytes.fromhex(words.get("config", "")),
    )


def _int(word: str | None, base: int = 10) -> int | None:
    return None if word is None else int(word, base)


def _lanes(word: str | None) -> int | None:
    """None for a link that is down: the kernel then writes 0 or 255."""
    lanes = _int(word)
    return lanes if lanes is not None and 0 < lanes <= 32 else None


def _speed(text: str | None) -> float | None:
    """GT/s of `32.0 GT/s PCIe`; None for `Unknown`."""
    match = re.match(r"(\d+(?:\.\d+)?) GT/s", text or "")
    return float(match[1]) if match else None


def _switch(word: str | None) -> bool | None:
    return None if word is None else word == "1"


def _capabilities(config: bytes, wanted: int) -> Iterator[int]:
    """Where capabilities of that id lie among the first 256 bytes."""
    at, seen = config[0x34] & 0xFC, set[int]()
    while at >= _PUBLIC_BYTES and at not in seen and at + 1 < len(config):
        seen.add(at)
        if config[at] == wanted:
            yield at
        at = config[at + 1] & 0xFC


def _extended_capabilities(config: bytes, wanted: int) -> Iterator[int]:
    """Where extended capabilities of that id lie: each begins with its id, and where the next one is in bits 20-31."""
    at, seen = _EXTENDED_AT, set[int]()
    while at >= _EXTENDED_AT and at not in seen and at + 4 <= len(config):
        seen.add(at)
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == wanted:
            yield at
        at = head >> 20 & 0xFFC
