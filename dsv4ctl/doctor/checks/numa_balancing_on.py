"""A kernel that moves memory between the nodes by itself."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.kernel import KERNEL, kernel
from dsv4ctl.doctor.looks.memory import NODES, nodes
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    setting = kernel(patient.box).numa_balancing
    if setting and len(nodes(patient.box)) > 1:
        yield Fault(
            f"automatic NUMA balancing is on ({setting}): the kernel takes pages away from engines for a moment, again "
            "and again, to see who uses them",
            {"numa_balancing": setting},
        )


CHECK = Check(
    "NUMA_BALANCING_ON",
    Severity.WARNING,
    "Does the kernel leave memory where it is?",
    "`sysctl -w kernel.numa_balancing=0`, and the same in /etc/sysctl.d",
    "https://www.kernel.org/doc/html/latest/admin-guide/sysctl/kernel.html",
    (KERNEL, NODES),
    _find,
    wants_gpus,
)
