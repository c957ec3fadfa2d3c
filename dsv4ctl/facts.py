"""What a host is, read in one round trip: NUMA nodes, GPUs, memory, disk, and what the engine's interpreter has."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

# Each fact on lines of its own, `NAME VALUE`. A part that cannot look prints nothing, and the fact is then unknown.
_SCRIPT = r"""
for node in /sys/devices/system/node/node[0-9]*; do [ -d "$node" ] && echo "node ${node##*/node}"; done
awk '/^MemAvailable:/ {print "memory_available_kb " $2}' /proc/meminfo
dir=$1; while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {print "disk_free_kb " $4}'
command -v numactl >/dev/null 2>&1 && echo "has numactl"
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=index,pci.bus_id,memory.total \
    --format=csv,noheader,nounits 2>/dev/null | sed 's/^/gpu /'
case $2 in
    "") ;;
    *) [ -d "$2" ] && echo "model_directory yes"
       [ -f "$2/config.json" ] && echo "model_config yes"
       [ -d "$2" ] && ls -lnL "$2" |
           awk '/\.(safetensors|bin|gguf)$/ {sum += $5} END {printf "model_bytes %.0f\n", sum}' ;;
esac
[ -x "$(command -v -- "$3")" ] && echo "python yes" && "$3" -c '
from importlib.metadata import PackageNotFoundError, version
for name in ("sglang", "sglang-router", "torch", "triton", "nixl", "nixl-cu12", "nixl-cu13", "flashinfer-python",
             "sgl-kernel", "transformers", "dsv4ctl"):
    try:
        print("package", name, version(name))
    except PackageNotFoundError:
        pass'
:
"""


@dataclass(frozen=True)
class GpuFact:
    """One GPU as nvidia-smi names it."""

    index: int
    pci_bus_id: str
    memory_mib: int


@dataclass(frozen=True)
class HostFacts:
    """What was found. None means that we could not look, which is not the same as none there."""

    numa_nodes: tuple[int, ...]
    gpus: tuple[GpuFact, ...]
    memory_available_bytes: int | None
    disk_free_bytes: int | None
    has_numactl: bool
    has_python: bool
    packages: Mapping[str, str]
    model_directory: bool
    model_config: bool
    model_bytes: int | None


def read_facts(host: "Host", *, state_root: str, model_path: str, python: str) -> HostFacts:
    """Look at a host. `model_path` may be empty: then the model is not looked for.

    Raises:
        OperationFailed: the host answered with something else than facts.
        HostUnreachable, DeadlineExceeded
    """
    path = "" if not model_path else posixpath.normpath(model_path)
    answer = host.run(["sh", "-c", _SCRIPT, "sh", state_root, path, python], deadline_s=30.0).text
    try:
        return parse_facts(answer)
    except (ValueError, IndexError) as error:
        raise OperationFailed(f"{host.name} described itself in a way we cannot read", why=str(error)) from error


def read_gpus(host: "Host") -> tuple[GpuFact, ...]:
    """The GPUs of a host by nvidia-smi.

    Raises:
        OperationFailed: it has no nvidia-smi, or that failed.
        HostUnreachable, DeadlineExceeded
    """
    query = ["nvidia-smi", "--query-gpu=index,pci.bus_id,memory.total", "--format=csv,noheader,nounits"]
    return tuple(_gpu(line) for line in host.run(query, deadline_s=30.0).text.splitlines() if line)


def _gpu(line: str) -> GpuFact:
    index, bus, mib = (part.strip() for part in line.split(","))
    return GpuFact(int(index), bus, int(mib))


def with_memory(facts: HostFacts, more_bytes: int) -> HostFacts:
    """The facts once so much more memory is free; what is unknown stays unknown."""
    free = facts.memory_available_bytes
    return facts if free is None else replace(facts, memory_available_bytes=free + more_bytes)


def parse_facts(answer: str) -> HostFacts:
    """The facts in the script's answer. ValueError or IndexError if it is malformed."""
    nodes: list[int] = []
    gpus: list[GpuFact] = []
    packages: dict[str, str] = {}
    words: dict[str, str] = {}
    flags: set[str] = set()
    for line in answer.splitlines():
        name, _, value = line.partition(" ")
        if name == "node":
            nodes.append(int(value))
        elif name == "gpu":
            gpus.append(_gpu(value))
        elif name == "package":
            package, version = value.split(" ", 1)
            packages[package] = version
        elif name == "has":
            flags.add(value)
        else:
            words[name] = value
    memory, disk, model = (words.get(key) for key in ("memory_available_kb", "disk_free_kb", "model_bytes"))
    return HostFacts(
        numa_nodes=tuple(sorted(nodes)),
        gpus=tuple(gpus),
        memory_available_bytes=int(memory) * 1024 if memory else None,
        disk_free_bytes=int(disk) * 1024 if disk else None,
        has_numactl="numactl" in flags,
        has_python="python" in words,
        packages=packages,
        model_directory="model_directory" in words,
        model_config="model_config" in words,
        model_bytes=int(model) if model else None,
    )
