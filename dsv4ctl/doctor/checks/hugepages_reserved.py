"""Memory set aside for huge pages that nobody uses."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.memory import NODES, nodes
from dsv4ctl.findings import Severity

LARGEST_PART = 0.1
"""Of a node's memory. Less is left to whoever reserved it."""

_GIB = 1024**3


def _has_engines(patient: Patient) -> bool:
    return bool(patient.engines)


def _find(patient: Patient) -> Iterator[Fault]:
    for node in nodes(patient.box).values():
        if node.unused_huge > node.total * LARGEST_PART:
            yield Fault(
                f"NUMA node {node.number} has {node.unused_huge / _GIB:.1f} of its {node.total / _GIB:.1f} GiB set "
                "aside for huge pages that nobody uses: engines cannot have that memory",
                {"node": node.number, "unused_bytes": node.unused_huge, "total_bytes": node.total},
            )


CHECK = Check(
    "HUGEPAGES_RESERVED",
    Severity.WARNING,
    "Is memory left over that huge pages keep from everybody?",
    "lower vm.nr_hugepages (sysctl), or nr_hugepages of the node in /sys/devices/system/node; look at "
    "hugepages= and hugepagesz= on the kernel's command line",
    "https://www.kernel.org/doc/html/latest/admin-guide/mm/hugetlbpage.html",
    (NODES,),
    _find,
    _has_engines,
)
