"""GPUs as the driver tells of them (nvidia-smi)."""

from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box, Patient
from dsv4ctl.profile.gpus import is_gpu

_FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "driver_version", "memory.total", "compute_cap"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max", "pstate"),
)
_NO_DRIVER = 'command -v nvidia-smi >/dev/null || { echo "there is no nvidia-smi" >&2; exit 1; }'

GPUS = Question("nvidia-smi", f"{_NO_DRIVER}\nnvidia-smi --query-gpu={','.join(_FIELDS)} --format=csv,noheader,nounits")
BAR1 = Question("nvidia-smi -q -d MEMORY", f"{_NO_DRIVER}\nnvidia-smi -q -d MEMORY")


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


def short(pci_bus_id: str) -> str:
    """A PCI bus id as the kernel writes it: `0000:41:00.0`."""
    domain, _, rest = pci_bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest.count(":") else f"0000:{domain}:{rest}"


def gpus(box: Box) -> tuple[Gpu, ...]:
    """Every GPU, by index.

    Raises:
        Unseen: the driver does not answer.
    """
    return box.read(GPUS.name, _gpus)


def planned(patient: Patient) -> tuple[Gpu, ...]:
    """Those that the profile's workers on this host take; all of them where it names none, or where it is not known
    which it means.

    Raises:
        Unseen
    """
    wanted = [gpu for worker in patient.engines for gpu in worker.gpus]
    there = gpus(patient.box)
    if not wanted or any(worker.unresolved for worker in patient.engines):
        return there
    return tuple(gpu for gpu in there if any(is_gpu(each, gpu) for each in wanted))


def bar1_mib(box: Box) -> dict[str, int]:
    """The size of BAR1 of each GPU, by its PCI bus id as the kernel writes it.

    Raises:
        Unseen
    """
    return box.read(BAR1.name, _bar1)


def _gpus(text: str) -> tuple[Gpu, ...]:
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(_FIELDS):
            raise ValueError(f"{len(words)} fields, and {len(_FIELDS)} were asked for")
        index, uuid, bus, name, driver, memory, capability, *link, pstate = words
        gen, gen_max, width, width_max = (int(word) if word.isdigit() else None for word in link)
        found.append(
            Gpu(int(index), uuid, bus, name, driver, int(memory), capability, gen, gen_max, width, width_max, pstate)
        )
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def _bar1(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    bus = section = ""
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if line.startswith("GPU "):
            bus = short(line.removeprefix("GPU ").strip())
        elif name.endswith("Memory Usage") and not value:
            section = name
        elif section == "BAR1 Memory Usage" and name == "Total":
            found[bus] = int(value.split()[0])
    return found
