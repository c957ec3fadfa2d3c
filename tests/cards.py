"""GPUs that are not here: a directory with the kernel's files about them, and a driver that prints what was noted."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4ctl.facts import GpuFact
from tests.host_with import HostWith

TWO_SOCKETS = {"01": 0, "11": 0, "21": 0, "31": 0, "81": 1, "91": 1, "a1": 1, "b1": 1}
"""Eight cards, four a socket: their buses, and the node of each."""

EIGHT_CARDS = tuple(
    GpuFact(index, f"0000:{bus}:00.0", 97887, f"GPU-{bus}", node, {node: 10, 1 - node: 32})
    for index, (bus, node) in enumerate(TWO_SOCKETS.items())
)
"""The same as a host tells of them."""

TWO_DISTANCES = {0: "10 32", 1: "32 10"}


@dataclass(frozen=True)
class CardBox:
    """A box as a directory; `root` is what the scripts put before the kernel's paths."""

    root: str

    def host(self) -> HostWith:
        """This machine, with the driver of the box."""
        return HostWith(Path(self.root) / "bin")


def card_box(
    root: Path,
    buses: Mapping[str, int] = TWO_SOCKETS,
    distances: Mapping[int, str] = TWO_DISTANCES,
    *,
    driver: bool = True,
) -> CardBox:
    """A box with cards on these buses, in the order of the bus; the node of each may be -1, as the kernel has it."""
    sys = root / "sys"
    for node, row in distances.items():
        folder = sys / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "distance").write_text(f"{row}\n")
    devices = sys / "bus" / "pci" / "devices"
    for bus, node in {**buses, "00": 0}.items():
        folder = devices / f"0000:{bus}:00.0"
        folder.mkdir(parents=True)
        # The host's bridge is no card.
        (folder / "vendor").write_text("0x1022\n" if bus == "00" else "0x10de\n")
        (folder / "numa_node").write_text(f"{node}\n")
    if driver:
        rows = [f"{index}, 00000000:{bus.upper()}:00.0, 97887, GPU-{bus}" for index, bus in enumerate(buses)]
        program = root / "bin" / "nvidia-smi"
        program.parent.mkdir()
        asked = "--query-gpu=index,pci.bus_id,memory.total,uuid,driver_version --format=csv,noheader,nounits"
        program.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] || exit 6\ncat <<END\n' + "\n".join(rows) + "\nEND\n")
        program.chmod(0o755)
    return CardBox(str(root))
