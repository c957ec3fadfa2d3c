"""The GPUs that workers ask for, by index, by PCI bus id, or as the nearest to a NUMA node, and which cards these are.

Pure: what a host has is handed in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

OWN_NODE_DISTANCE = 10
"""What the kernel gives as the distance of a node from itself (ACPI's SLIT)."""

_PCI_BUS_ID = re.compile(r"(?:[0-9A-Fa-f]{4}(?:[0-9A-Fa-f]{4})?:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_NEAREST = re.compile(r"([1-9][0-9]{0,2}) nearest to node (0|[1-9][0-9]{0,3})")


class NamedGpu(Protocol):
    """A GPU that is there: its index, and its PCI bus id."""

    @property
    def index(self) -> int: ...

    @property
    def pci_bus_id(self) -> str: ...


class PlacedGpu(NamedGpu, Protocol):
    """A GPU and where it is: its NUMA node (None: unknown), and how far each node is from it, as far as is known."""

    @property
    def numa_node(self) -> int | None: ...

    @property
    def distances(self) -> Mapping[int, int]: ...


G = TypeVar("G", bound=PlacedGpu)


@dataclass(frozen=True)
class Nearest:
    """So many GPUs: the nearest to a NUMA node that nobody else asks for by name."""

    count: int
    node: int


@dataclass(frozen=True)
class Asked:
    """What one worker asks for, item by item."""

    worker: str
    gpus: tuple[int | str, ...]


@dataclass(frozen=True)
class Missing:
    """An item that no card could be found for, and why: how a sentence goes on that begins with the item."""

    worker: str
    position: int
    gpu: int | str
    why: str


@dataclass(frozen=True)
class Chosen(Generic[G]):
    """The cards of each worker, by its name and the position of the item; an item in `missing` has none."""

    cards: Mapping[tuple[str, int], tuple[G, ...]] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()


def is_gpu_name(value: object) -> bool:
    """Whether a value names GPUs: an index, a PCI bus id, or the nearest to a node."""
    if isinstance(value, str):
        return bool(_PCI_BUS_ID.fullmatch(value) or _NEAREST.fullmatch(value))
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def nearest_of(gpu: int | str) -> Nearest | None:
    """What `"4 nearest to node 0"` asks for; None for an index or a bus id."""
    match = _NEAREST.fullmatch(gpu) if isinstance(gpu, str) else None
    return Nearest(int(match[1]), int(match[2])) if match else None


def same_gpu(gpu: int | str) -> int | str:
    """A form in which two spellings of one PCI bus id are equal: the domain is optional, and 4 or 8 digits long."""
    if isinstance(gpu, int) or not _PCI_BUS_ID.fullmatch(gpu):
        return gpu
    *domain, bus, device = gpu.lower().split(":")
    return f"{int(domain[0], 16) if domain else 0:x}:{bus}:{device}"


def is_gpu(gpu: int | str, known: NamedGpu) -> bool:
    """Whether a GPU that is there is the one that a profile names."""
    return gpu == known.index if isinstance(gpu, int) else same_gpu(gpu) == same_gpu(known.pci_bus_id)


def kernel_id(pci_bus_id: str) -> str:
    """A PCI bus id as the kernel writes it, and a profile best does: `0000:41:00.0`."""
    domain, bus, device = str(same_gpu(pci_bus_id)).split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}"


def shown(gpu: PlacedGpu) -> str:
    """A card for a person: index, bus id and NUMA node."""
    node = "node unknown" if gpu.numa_node is None else f"node {gpu.numa_node}"
    return f"{gpu.index} ({kernel_id(gpu.pci_bus_id)}, {node})"


def choose(host: str, asked: Sequence[Asked], there: Sequence[G], unseen: str = "") -> Chosen[G]:
    """The cards for everything that is asked of one host, which has `there`; `unseen` says why they could not be looked
    at.

    All that is named comes first. Of the rest, each card goes to the item whose node it is nearest to, item by item in
    the order of the profile where several nodes are as near, and in the order of the bus where several cards are. So no
    two items get the same card, and the same question gets the same answer.
    """
    if unseen:
        why = f"cannot be looked for on host {host}: {unseen}"
        return Chosen({}, tuple(Missing(one.worker, at, gpu, why) for one in asked for at, gpu in enumerate(one.gpus)))
    cards: dict[tuple[str, int], tuple[G, ...]] = {}
    missing: list[Missing] = []
    seats: list[tuple[Asked, int, Nearest]] = []
    for one in asked:
        for position, gpu in enumerate(one.gpus):
            if nearest := nearest_of(gpu):
                seats.append((one, position, nearest))
            elif found := [known for known in there if is_gpu(gpu, known)]:
                cards[one.worker, position] = (found[0],)
            else:
                missing.append(Missing(one.worker, position, gpu, f"does not exist on host {host}; {_all_of(there)}"))
    named = {card.index for own in cards.values() for card in own}
    free = sorted((gpu for gpu in there if gpu.index not in named), key=_bus_order)
    given = _seated(host, [nearest for _, _, nearest in seats], free)
    for (one, position, nearest), own in zip(seats, given, strict=True):
        if isinstance(own, str):
            missing.append(Missing(one.worker, position, one.gpus[position], own))
        elif not there:
            missing.append(
                Missing(one.worker, position, one.gpus[position], f"finds none: no GPU answers on host {host}")
            )
        elif len(own) < nearest.count:
            why = f"takes {nearest.count} GPUs, and on host {host} {len(own)} are left for it; {_all_of(there)}"
            missing.append(Missing(one.worker, position, one.gpus[position], why))
        else:
            cards[one.worker, position] = tuple(own)
    return Chosen(cards, tuple(missing))


def _seated(host: str, seats: Sequence[Nearest], free: Sequence[G]) -> list[list[G] | str]:
    """For each item its cards in the order of the bus, or why it cannot be told which."""
    unknown = [next((why for gpu in free if (why := _unknown(host, gpu, nearest.node))), None) for nearest in seats]
    given: list[list[G]] = [[] for _ in seats]
    offers = sorted(
        (gpu.distances[nearest.node], seat, at)
        for seat, nearest in enumerate(seats)
        if not unknown[seat]
        for at, gpu in enumerate(free)
    )
    gone: set[int] = set()
    for _, seat, at in offers:
        if at not in gone and len(given[seat]) < seats[seat].count:
            gone.add(at)
            given[seat].append(free[at])
    return [why or sorted(own, key=_bus_order) for why, own in zip(unknown, given, strict=True)]


def _unknown(host: str, gpu: PlacedGpu, node: int) -> str | None:
    """Why it cannot be told how near a card is to a node."""
    card = f"GPU {gpu.index} ({kernel_id(gpu.pci_bus_id)})"
    if gpu.numa_node is None:
        return f"cannot be told: host {host} does not know on which NUMA node {card} is; name the cards by bus id"
    if node not in gpu.distances:
        nodes = ", ".join(map(str, sorted(gpu.distances)))
        return f"cannot be told: host {host} says of {card} only how far it is from NUMA node {nodes}"
    return None


def _all_of(there: Sequence[NamedGpu]) -> str:
    gpus = ", ".join(f"{known.index} ({known.pci_bus_id})" for known in there) or "none"
    return f"its GPUs: {gpus}"


def _bus_order(gpu: NamedGpu) -> tuple[int, ...]:
    domain, bus, device = kernel_id(gpu.pci_bus_id).split(":")
    slot, _, function = device.partition(".")
    return tuple(int(part, 16) for part in (domain, bus, slot, function))
