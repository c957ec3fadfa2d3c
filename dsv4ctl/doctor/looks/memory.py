"""Memory of each NUMA node, huge pages, and /dev/shm."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box

NODES = Question(
    "/sys/devices/system/node",
    r"""
[ -d "$1/sys/devices/system/node" ] || { echo "there is no /sys/devices/system/node" >&2; exit 1; }
cat "$1"/sys/devices/system/node/node[0-9]*/meminfo
for size in "$1"/sys/devices/system/node/node[0-9]*/hugepages/hugepages-*kB; do
    [ -d "$size" ] || continue
    node=${size%/hugepages/*} reserved= free=
    read -r reserved <"$size/nr_hugepages"; read -r free <"$size/free_hugepages"
    pages=${size##*/hugepages-}
    echo "pages ${node##*/node} ${pages%kB} $reserved $free"
done 2>/dev/null
:
""",
)
SHM = Question("df /dev/shm", 'df -Pk "$1/dev/shm"')

_FIELD = re.compile(r"Node (\d+) ([A-Za-z_()]+): +(\d+) kB")


@dataclass(frozen=True)
class Node:
    """Memory of one NUMA node, in bytes.

    Attributes:
        available: what a process bound to it could get: free, or taken by the page cache and reclaimable slabs. The
            kernel tells MemAvailable of the whole machine alone.
        unused_huge: reserved for huge pages of any size, and not used by anybody.
    """

    number: int
    total: int
    available: int
    unused_huge: int


@dataclass(frozen=True)
class Shm:
    """The size of /dev/shm and what of it is free, in bytes."""

    total: int
    free: int


def nodes(box: Box) -> Mapping[int, Node]:
    """Every NUMA node that has memory, by its number.

    Raises:
        Unseen
    """
    return box.read(NODES.name, parse_nodes)


def shm(box: Box) -> Shm:
    """Raises:
    Unseen
    """
    return box.read(SHM.name, parse_shm)


def parse_nodes(text: str) -> dict[int, Node]:
    """Raises:
    ValueError, KeyError
    """
    kb: dict[int, dict[str, int]] = {}
    huge: dict[int, int] = {}
    for line in text.splitlines():
        if match := _FIELD.match(line):
            kb.setdefault(int(match[1]), {})[match[2]] = int(match[3])
        elif line.startswith("pages "):
            _, node, size_kb, _reserved, free = line.split(" ")
            huge[int(node)] = huge.get(int(node), 0) + int(size_kb) * int(free)
    found = {}
    for number, fields in kb.items():
        given_back = fields["Active(file)"] + fields["Inactive(file)"] + fields.get("SReclaimable", 0)
        found[number] = Node(
            number,
            total=fields["MemTotal"] * 1024,
            available=(fields["MemFree"] + given_back) * 1024,
            unused_huge=huge.get(number, 0) * 1024,
        )
    return found


def parse_shm(text: str) -> Shm:
    """Raises:
    ValueError, IndexError: it is not what `df -Pk` prints.
    """
    words = text.splitlines()[-1].split()
    return Shm(total=int(words[1]) * 1024, free=int(words[3]) * 1024)
