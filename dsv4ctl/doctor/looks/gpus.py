"""GPUs as the driver tells of them (nvidia-smi), and the driver itself."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box, Patient, Unseen
from dsv4ctl.profile.gpus import NamedGpu, Nearest, is_gpu, nearest_of
from dsv4ctl.stack import Worker

_FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "driver_version", "memory.total", "compute_cap"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max", "pstate"),
)
_SMI = """command -v nvidia-smi >/dev/null || { echo "there is no nvidia-smi" >&2; exit 1; }
exec nvidia-smi"""
_VERSION = r"\d{3,}\.\d+(?:\.\d+)?"
_NONE_FOUND = "No devices were found"

GPUS = Question("nvidia-smi", f"{_SMI} --query-gpu={','.join(_FIELDS)} --format=csv,noheader,nounits")
BAR1 = Question("nvidia-smi -q -d MEMORY", f"{_SMI} -q -d MEMORY")
TOPOLOGY = Question("nvidia-smi topo -m", f"{_SMI} topo -m")
GPU_USERS = Question(
    "nvidia-smi --query-compute-apps",
    f"{_SMI} --query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits",
)
DRIVER = Question(
    "/proc/driver/nvidia",
    r"""
if [ -r "$1/proc/driver/nvidia/version" ]; then head -n1 "$1/proc/driver/nvidia/version"; fi
if command -v nvidia-smi >/dev/null; then echo "nvidia-smi is there"; fi
""",
)

BY_BUS_ID = "name the cards by bus id in the profile"
"""What to do where it cannot be told which are the nearest to a node."""

DISTANCES = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""How far apart two GPUs are in `nvidia-smi topo -m`, the nearest first: NVLink, one PCIe switch, several, the host
bridge, bridges of one NUMA node, sockets."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in MiB; `link_*` of its PCIe link, a width in lanes, a speed as the generation that it equals.

    What the driver does not tell of a card is None.
    """

    index: int
    uuid: str
    pci_bus_id: str
    name: str
    driver: str
    memory_mib: int
    compute_capability: str
    link_gen: int | None
    link_gen_max: int | None
    link_width: int | None
    link_width_max: int | None
    pstate: str

    @property
    def named(self) -> str:
        """How messages name it."""
        return f"GPU {self.index} ({short(self.pci_bus_id)})"


@dataclass(frozen=True)
class Driver:
    """What of the driver is there. `version` is that of the loaded kernel module, None where none is loaded."""

    version: tuple[int, ...] | None
    is_open: bool
    has_smi: bool


@dataclass(frozen=True)
class GpuUser:
    """A process that holds memory of a GPU; None where the driver does not say how much."""

    pid: int
    gpu_uuid: str
    memory_mib: int | None


def short(pci_bus_id: str) -> str:
    """A PCI bus id as the kernel writes it: `0000:41:00.0`.

    Raises:
        ValueError: it is none.
    """
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest.count(":") else f"0000:{domain}:{rest}"


def gpus(box: Box) -> tuple[Gpu, ...]:
    """Every GPU, by index.

    Raises:
        Unseen: the driver does not answer.
    """
    return box.read(GPUS.name, parse_gpus)


def planned(patient: Patient) -> tuple[Gpu, ...]:
    """Those that the profile's workers on this host take; all that they may take, where it does not say which.

    Raises:
        Unseen
    """
    there = gpus(patient.box)
    items = [item for worker in patient.engines for item in worker.gpus]
    if not items or any(nearest_of(item) for item in items):
        return there
    return tuple(gpu for gpu in there if any(is_gpu(item, gpu) for item in items))


def takes(worker: Worker, gpu: NamedGpu) -> bool:
    """Whether a worker takes a GPU that is there: one of those that it names, or any where it names none."""
    return not worker.gpus or any(is_gpu(item, gpu) for item in worker.gpus)


def own_gpus(worker: Worker, there: Iterable[Gpu]) -> list[Gpu]:
    """Those of the GPUs that a worker takes.

    Raises:
        Unseen: it asks for the nearest to a node, and which these are could not be told when the plan was made.
    """
    if open_items(worker):
        raise Unseen(f"GPUs of {worker.name}: {'; '.join(worker.unresolved)}", BY_BUS_ID)
    return [gpu for gpu in there if takes(worker, gpu)]


def open_items(worker: Worker) -> list[Nearest]:
    """What a worker asks for as the nearest to a node, and no cards were found for when the plan was made."""
    return [nearest for item in worker.gpus if (nearest := nearest_of(item))]


def missing(worker: Worker, there: Iterable[Gpu]) -> list[int | str]:
    """What a worker names, by number or by bus id, and is not there."""
    known = list(there)
    return [item for item in worker.gpus if not nearest_of(item) and not any(is_gpu(item, gpu) for gpu in known)]


def asked_for(worker: Worker) -> int:
    """How many GPUs a worker names; 0 where it takes all."""
    return sum(nearest.count if (nearest := nearest_of(item)) else 1 for item in worker.gpus)


def names_by_bus_id(worker: Worker) -> bool:
    """Whether a worker names its GPUs so that each can be told without the driver's numbers."""
    return bool(worker.gpus) and all(isinstance(item, str) and not nearest_of(item) for item in worker.gpus)


def bar1_mib(box: Box) -> dict[str, int]:
    """The size of BAR1 of each GPU, by its PCI bus id as the kernel writes it.

    Raises:
        Unseen
    """
    return box.read(BAR1.name, parse_bar1)


def distances(box: Box) -> dict[tuple[int, int], str]:
    """How far apart each pair of GPUs is, by their indices: one of `DISTANCES`.

    Raises:
        Unseen
    """
    return box.read(TOPOLOGY.name, parse_topology)


def gpu_users(box: Box) -> tuple[GpuUser, ...]:
    """Processes that hold GPU memory, as far as the driver shows them: none of another PID namespace.

    Raises:
        Unseen
    """
    return box.read(GPU_USERS.name, parse_users)


def driver(box: Box) -> Driver:
    """Raises:
    Unseen
    """
    return box.read(DRIVER.name, parse_driver)


def driver_version(box: Box) -> tuple[int, ...] | None:
    """The version of the driver: of the loaded kernel module, or what nvidia-smi has, where the kernel shows none (in
    a container); None where there is no driver at all.

    Raises:
        Unseen: neither tells.
    """
    found = driver(box)
    if found.version is not None or not found.has_smi:
        return found.version
    said = next((gpu.driver for gpu in gpus(box)), "")
    if not re.fullmatch(_VERSION, said):
        raise Unseen("the kernel shows no driver that is loaded, and nvidia-smi no GPU with a driver's version")
    return tuple(int(part) for part in said.split("."))


def version_text(version: tuple[int, ...]) -> str:
    """A driver's version as NVIDIA writes it."""
    return ".".join(f"{part:02d}" for part in version)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Raises:
    ValueError: it is not what nvidia-smi prints.
    """
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if words == [_NONE_FOUND]:
            continue
        if len(words) != len(_FIELDS):
            raise ValueError(f"{len(words)} fields, and {len(_FIELDS)} were asked for")
        index, uuid, bus, name, version, memory, capability, *link, pstate = words
        short(bus)
        gen, gen_max, width, width_max = (int(word) if word.isdecimal() else None for word in link)
        found.append(
            Gpu(int(index), uuid, bus, name, version, int(memory), capability, gen, gen_max, width, width_max, pstate)
        )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def parse_bar1(text: str) -> dict[str, int]:
    """Raises:
    ValueError
    """
    found: dict[str, int] = {}
    bus = section = ""
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if line.startswith("GPU "):
            bus = short(line.removeprefix("GPU ").strip())
        elif name.endswith("Memory Usage") and not value:
            section = name
        elif section == "BAR1 Memory Usage" and name == "Total":
            size, _, unit = value.partition(" ")
            if unit != "MiB":
                raise ValueError(f"BAR1 in {unit or 'nothing'}")
            found[bus] = int(size)
    return found


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """Raises:
    ValueError: there is no table of GPUs in it.
    """
    rows: dict[int, list[str]] = {}
    # The heading is underlined, by codes for terminals.
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        words = line.split()
        if words and (match := re.fullmatch(r"GPU(\d+)", words[0])) and len(words) > 1 and words[1][:3] != "GPU":
            rows[int(match[1])] = words[1:]
    if not rows:
        raise ValueError("no table of GPUs")
    found: dict[tuple[int, int], str] = {}
    for row, cells in rows.items():
        if len(cells) < len(rows):
            raise ValueError(f"{len(cells)} fields for {len(rows)} GPUs")
        for column, cell in zip(sorted(rows), cells, strict=False):
            if column != row:
                kind = re.sub(r"^NV\d+$", "NV", cell)
                if kind not in DISTANCES:
                    raise ValueError(f"unknown path {cell!r}")
                found[row, column] = kind
    return found


def parse_users(text: str) -> tuple[GpuUser, ...]:
    """Raises:
    ValueError
    """
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if words == [_NONE_FOUND] or words == [""]:
            continue
        pid, uuid, memory = words
        found.append(GpuUser(int(pid), uuid, int(memory) if memory.isdecimal() else None))
    return tuple(found)


def parse_driver(text: str) -> Driver:
    """Raises:
    ValueError: there is a version in it that is none.
    """
    lines = text.splitlines()
    has_smi = "nvidia-smi is there" in lines
    said = next((line for line in lines if line.startswith("NVRM version:")), None)
    if said is None:
        return Driver(None, is_open=False, has_smi=has_smi)
    match = re.search(rf"\s({_VERSION})\s", f"{said} ")
    if match is None:
        raise ValueError(f"no version in {said!r}")
    version = tuple(int(part) for part in match[1].split("."))
    return Driver(version, "Open Kernel Module" in said, has_smi)
