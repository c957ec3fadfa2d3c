"""What a host is, read in one round trip: NUMA nodes, GPUs, memory, disk, and what the engine's interpreter has."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed
from dsv4ctl.profile.gpus import OWN_NODE_DISTANCE, same_gpu

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

# Each fact on lines of its own, `NAME VALUE`. A part that cannot look prints nothing, and the fact is then unknown.
# $root is put before the paths of the kernel: empty, but for a recorded tree.
_NODES = r"""
for node in "$root"/sys/devices/system/node/node[0-9]*; do
    [ -d "$node" ] || continue
    echo "node ${node##*/node}"
    [ -r "$node/distance" ] && echo "distance ${node##*/node} $(cat "$node/distance")"
done
"""
_CARDS = r"""
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi --query-gpu=index,pci.bus_id,memory.total,uuid \
    --format=csv,noheader,nounits 2>/dev/null | sed 's/^/gpu /'
for card in "$root"/sys/bus/pci/devices/*; do
    [ -r "$card/vendor" ] && [ "$(cat "$card/vendor")" = 0x10de ] || continue
    [ -r "$card/numa_node" ] && echo "card ${card##*/} $(cat "$card/numa_node")"
done
"""
_SCRIPT = r"""
awk '/^MemAvailable:/ {print "memory_available_kb " $2}' /proc/meminfo
dir=$1; while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {print "disk_free_kb " $4}'
command -v numactl >/dev/null 2>&1 && echo "has numactl"
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
             "sglang-kernel", "transformers", "dsv4ctl"):
    try:
        print("package", name, version(name))
    except PackageNotFoundError:
        pass'
:
"""

_GPUS_DEADLINE_S = 15.0


@dataclass(frozen=True)
class GpuFact:
    """One GPU as nvidia-smi names it, and where the kernel says that it is.

    `numa_node` is None where the kernel does not know it (-1 in sysfs), unless the host has one node alone: then it is
    that. `distances` says how far each node of the host is from the card, as far as is known.
    """

    index: int
    pci_bus_id: str
    memory_mib: int
    uuid: str = ""
    numa_node: int | None = None
    distances: Mapping[int, int] = field(default_factory=dict, hash=False)


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


def read_facts(host: "Host", *, state_root: str, model_path: str, python: str, root: str = "") -> HostFacts:
    """Look at a host. `model_path` may be empty: then the model is not looked for. `root` is put before the paths of
    the kernel.

    Raises:
        OperationFailed: the host answered with something else than facts.
        HostUnreachable, DeadlineExceeded
    """
    path = "" if not model_path else posixpath.normpath(model_path)
    script = f"root=$4\n{_NODES}{_CARDS}{_SCRIPT}"
    answer = host.run(["sh", "-c", script, "sh", state_root, path, python, root], deadline_s=30.0).text
    try:
        return parse_facts(answer)
    except (ValueError, IndexError) as error:
        raise OperationFailed(f"{host.name} described itself in a way we cannot read", why=str(error)) from error


def read_gpus(host: "Host", *, root: str = "") -> tuple[GpuFact, ...]:
    """The GPUs of a host by nvidia-smi and the kernel; none where there is no nvidia-smi, or where it fails.

    Raises:
        OperationFailed: the host answered with something else.
        HostUnreachable, DeadlineExceeded
    """
    answer = host.run(["sh", "-c", f"root=$1\n{_NODES}{_CARDS}:", "sh", root], deadline_s=_GPUS_DEADLINE_S).text
    try:
        return _parse_gpus(_lines(answer))
    except (ValueError, IndexError) as error:
        raise OperationFailed(f"{host.name} described its GPUs in a way we cannot read", why=str(error)) from error


def _lines(answer: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (line.partition(" ") for line in answer.splitlines())]


def _parse_gpus(lines: Sequence[tuple[str, str]]) -> tuple[GpuFact, ...]:
    nodes = sorted(int(value) for name, value in lines if name == "node")
    rows = [[int(word) for word in value.split()] for name, value in lines if name == "distance"]
    # A row has the distance from its node to each node there is, in their order. One of another length is no such row.
    table = {row[0]: dict(zip(nodes, row[1:], strict=True)) for row in rows if len(row) == len(nodes) + 1}
    placed = {same_gpu(bus): int(node) for bus, node in (value.split() for name, value in lines if name == "card")}
    return tuple(_gpu(value, placed, nodes, table) for name, value in lines if name == "gpu")


def _gpu(
    line: str,
    placed: Mapping[int | str, int],
    nodes: Sequence[int],
    table: Mapping[int, Mapping[int, int]],
) -> GpuFact:
    index, bus, mib, *more = (part.strip() for part in line.split(","))
    node: int | None = placed.get(same_gpu(bus), -1)
    if node == -1:
        node = nodes[0] if len(nodes) == 1 else None
    distances = {} if node is None else {here: row[node] for here, row in table.items() if node in row}
    if node is not None:
        distances.setdefault(node, OWN_NODE_DISTANCE)
    return GpuFact(int(index), bus, int(mib), more[0] if more else "", node, distances)


def with_memory(facts: HostFacts, more_bytes: int) -> HostFacts:
    """The facts once so much more memory is free; what is unknown stays unknown."""
    free = facts.memory_available_bytes
    return facts if free is None else replace(facts, memory_available_bytes=free + more_bytes)


def parse_facts(answer: str) -> HostFacts:
    """The facts in the script's answer. ValueError or IndexError if it is malformed."""
    lines = _lines(answer)
    packages: dict[str, str] = {}
    words: dict[str, str] = {}
    flags: set[str] = set()
    for name, value in lines:
        if name == "package":
            package, version = value.split(" ", 1)
            packages[package] = version
        elif name == "has":
            flags.add(value)
        else:
            words[name] = value
    memory, disk, model = (words.get(key) for key in ("memory_available_kb", "disk_free_kb", "model_bytes"))
    return HostFacts(
        numa_nodes=tuple(sorted(int(value) for name, value in lines if name == "node")),
        gpus=_parse_gpus(lines),
        memory_available_bytes=int(memory) * 1024 if memory else None,
        disk_free_bytes=int(disk) * 1024 if disk else None,
        has_numactl="numactl" in flags,
        has_python="python" in words,
        packages=packages,
        model_directory="model_directory" in words,
        model_config="model_config" in words,
        model_bytes=int(model) if model else None,
    )
