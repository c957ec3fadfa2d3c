"""What a host is, read in one round trip: NUMA nodes, GPUs, memory, disk, and what the engine's interpreter has."""

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsv4ctl.doctor.asking import Answer, Question, ask
from dsv4ctl.errors import OperationFailed
from dsv4ctl.packages import DRIVER, NIXL, PACKAGES, UCX
from dsv4ctl.profile.gpus import OWN_NODE_DISTANCE, same_gpu

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

# Each fact on lines of its own, `NAME VALUE`. A part that cannot look prints nothing, and the fact is then unknown.
# $1 is put before the paths of the kernel: empty, but for a recorded tree.
_PLACES = Question(
    "/sys/devices/system/node, /sys/bus/pci and /proc/driver",
    r"""
for node in "$1"/sys/devices/system/node/node[0-9]*; do
    [ -d "$node" ] || continue
    echo "node ${node##*/node}"
    [ -r "$node/distance" ] && echo "distance ${node##*/node} $(cat "$node/distance")"
done
for card in "$1"/sys/bus/pci/devices/*; do
    [ -r "$card/vendor" ] && [ "$(cat "$card/vendor")" = 0x10de ] || continue
    [ -r "$card/numa_node" ] && echo "card ${card##*/} $(cat "$card/numa_node")"
done
[ -r "$1/proc/driver/nvidia/version" ] &&
    sed -nE '1s/^.*[^0-9.]([0-9]{3,}(\.[0-9]+)+)[^0-9.].*$/driver \1/p' "$1/proc/driver/nvidia/version"
:
""",
    within_s=10.0,
)
_CARDS = Question(
    "nvidia-smi",
    r"""
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi --query-gpu=index,pci.bus_id,memory.total,uuid,driver_version --format=csv,noheader,nounits
""",
    # A driver without persistence mode wakes each card first, which takes about a second a card.
    within_s=10.0,
)
_NONE_FOUND = "No devices were found"
_MEMORY = Question(
    "/proc/meminfo", """awk '/^MemAvailable:/ {print "memory_available_kb " $2}' /proc/meminfo""", within_s=10.0
)
_DISK = r"""
dir=$state; while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
df -Pk "$dir" | awk 'NR == 2 {print "disk_free_kb " $4}'
"""
_MODEL = r"""
[ -d "$model" ] && echo "model_directory yes"
[ -f "$model/config.json" ] && echo "model_config yes"
[ -d "$model" ] && ls -lnL "$model" |
    awk '/\.(safetensors|bin|gguf)$/ {sum += $5} END {printf "model_bytes %.0f\n", sum}'
:
"""
# UCX is asked for its version by itself: the one in NIXL's wheel, or the system's, for which NIXL was built then.
_PACKAGES = f"""
import ctypes, os
from importlib.metadata import PackageNotFoundError, distribution
there = {{}}
for name in {PACKAGES}:
    try:
        there[name] = distribution(name)
    except PackageNotFoundError:
        continue
    print("package", name, there[name].version)
nixl = [there[name] for name in {NIXL} if name in there]
bundled = [str(path.locate()) for each in nixl for path in each.files or () if path.name.startswith("libucp")]
for name in [name for name in os.environ if name.startswith("UCX_")]:
    del os.environ[name]
said = set()
for library in bundled or ["libucp.so.0"] * bool(nixl):
    try:
        ask = ctypes.CDLL(library).ucp_get_version_string
    except (OSError, AttributeError) as error:
        print("unseen", "{UCX}", str(error).replace(chr(10), " "))
    else:
        ask.restype = ctypes.c_char_p
        said.add(ask().decode())
if said:
    print("package", "{UCX}", " and ".join(sorted(said)))
"""
_PROGRAMS = f"""
command -v numactl >/dev/null 2>&1 && echo "has numactl"
[ -x "$(command -v -- "$python")" ] && echo "python yes" && "$python" -c {shlex.quote(_PACKAGES)}
:
"""
# A model's directory may be on another machine, and an interpreter's too.
_DISK_WITHIN_S = 10.0
_MODEL_WITHIN_S = 15.0
_PROGRAMS_WITHIN_S = 20.0


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
    driver: str = ""


@dataclass(frozen=True)
class HostFacts:
    """What was found. None means that we could not look, which is not the same as none there. `gpus_unseen` says why
    the GPUs could not be looked at; empty where they could. `packages` has UCX and the driver too, and `unseen` why one
    of these is not known."""

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
    gpus_unseen: str = ""
    unseen: Mapping[str, str] = field(default_factory=dict, hash=False)


def read_facts(host: "Host", *, state_root: str, model_path: str, python: str, root: str = "") -> HostFacts:
    """Look at a host. `model_path` may be empty: then the model is not looked for. `root` is put before the paths of
    the kernel. GPUs that do not answer are no error: the other facts are true all the same.

    Raises:
        OperationFailed: the model or the interpreter could not be looked at, or the host answered with something else.
        HostUnreachable, DeadlineExceeded
    """
    disk = Question(f"the disk of {state_root}", f"state={shlex.quote(state_root)}\n{_DISK}", _DISK_WITHIN_S)
    programs = Question(f"{python}, numactl", f"python={shlex.quote(python)}\n{_PROGRAMS}", _PROGRAMS_WITHIN_S)
    needed = [_PLACES, programs]
    if model_path:
        path = posixpath.normpath(model_path)
        needed.append(Question(path, f"model={shlex.quote(path)}\n{_MODEL}", _MODEL_WITHIN_S))
    answers = ask(host, [*needed, _CARDS, _MEMORY, disk], root=root)
    for question in needed:
        _check(host, question, answers)
    # What does not tell of memory or disk tells nothing, and that is then unknown.
    text = "".join(answers[question.name].text for question in (*needed, _MEMORY, disk))
    try:
        facts = parse_facts(text)
    except (ValueError, IndexError) as error:
        raise OperationFailed(f"{host.name} described itself in a way we cannot read", why=str(error)) from error
    gpus, unseen = _gpus(answers)
    return _with_driver(replace(facts, gpus=gpus, gpus_unseen=unseen))


def _with_driver(facts: HostFacts) -> HostFacts:
    """In a container the kernel may not show which driver it has, and nvidia-smi may."""
    said = next((gpu.driver for gpu in facts.gpus), "")
    if DRIVER in facts.packages or not (said or facts.gpus_unseen):
        return facts
    if said:
        return replace(facts, packages={**facts.packages, DRIVER: said})
    return replace(facts, unseen={**facts.unseen, DRIVER: facts.gpus_unseen})


def read_gpus(host: "Host", *, root: str = "") -> tuple[GpuFact, ...]:
    """The GPUs of a host by nvidia-smi and the kernel; none where there is no nvidia-smi.

    Raises:
        OperationFailed: they could not be looked at; `why` is a sentence without the host's name.
        HostUnreachable, DeadlineExceeded
    """
    answers = ask(host, [_PLACES, _CARDS], root=root)
    _check(host, _PLACES, answers)
    gpus, unseen = _gpus(answers)
    if unseen:
        raise OperationFailed(f"the GPUs of {host.name} could not be looked at", why=unseen)
    return gpus


def _check(host: "Host", question: Question, answers: Mapping[str, Answer]) -> None:
    if failure := answers[question.name].failure:
        raise OperationFailed(f"{question.name} on {host.name} could not be looked at", why=failure)


def _gpus(answers: Mapping[str, Answer]) -> tuple[tuple[GpuFact, ...], str]:
    """The GPUs, and why they could not be looked at; empty where they could."""
    cards = answers[_CARDS.name]
    if cards.failure:
        return (), f"{_CARDS.name}: {cards.failure}"
    there = [("gpu", line) for line in cards.text.splitlines() if line.strip() != _NONE_FOUND]
    try:
        return _parse_gpus([*_lines(answers[_PLACES.name].text), *there]), ""
    except (ValueError, IndexError) as error:
        return (), f"{_CARDS.name}: the answer is not understood ({error})"


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
    uuid, driver, *_ = (*more, "", "")
    node: int | None = placed.get(same_gpu(bus), -1)
    if node == -1:
        node = nodes[0] if len(nodes) == 1 else None
    distances = {} if node is None else {here: row[node] for here, row in table.items() if node in row}
    if node is not None:
        distances.setdefault(node, OWN_NODE_DISTANCE)
    return GpuFact(int(index), bus, int(mib), uuid, node, distances, driver)


def with_memory(facts: HostFacts, more_bytes: int) -> HostFacts:
    """The facts once so much more memory is free; what is unknown stays unknown."""
    free = facts.memory_available_bytes
    return facts if free is None else replace(facts, memory_available_bytes=free + more_bytes)


def parse_facts(answer: str) -> HostFacts:
    """The facts in the host's answers, put one behind the other. ValueError or IndexError if they are malformed."""
    lines = _lines(answer)
    packages: dict[str, str] = {}
    words: dict[str, str] = {}
    unseen: dict[str, str] = {}
    flags: set[str] = set()
    for name, value in lines:
        if name == "package":
            package, version = value.split(" ", 1)
            packages[package] = version
        elif name == "unseen":
            what, why = value.split(" ", 1)
            unseen[what] = why
        elif name == DRIVER:
            packages[DRIVER] = value
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
        unseen={what: why for what, why in unseen.items() if what not in packages},
    )
