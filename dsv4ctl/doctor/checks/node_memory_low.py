"""Too little free memory on a NUMA node for the worker that is bound to it."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.memory import NODES, nodes
from dsv4ctl.doctor.looks.plan import number, on_gpus, ranks
from dsv4ctl.doctor.looks.processes import MARKED, marked
from dsv4ctl.findings import Severity
from dsv4ctl.stack import Worker

_GIB = 1024**3
RANK_BYTES = 4 * _GIB
"""For each scheduler on a GPU and for the server before them: CUDA, PyTorch, NCCL and pinned buffers. An assumption."""

CPU_RANK_BYTES = 1 * _GIB
"""The same without a GPU: 0.6 GB was measured on the CPU profile."""


def _needed(worker: Worker) -> int:
    """What its processes need beside what the page cache holds. hicache-size and cpu-offload-gb are GB of each rank."""
    own = RANK_BYTES if on_gpus(worker) else CPU_RANK_BYTES
    pools = (number(worker, 0, "hicache-size") + number(worker, 0, "cpu-offload-gb")) * 10**9
    return ranks(worker) * (own + pools) + own


def _is_bound(patient: Patient) -> bool:
    return any(worker.numa_node is not None for worker in patient.engines)


def _find(patient: Patient) -> Iterator[Fault]:
    there = nodes(patient.box)
    running = {one.unit for one in marked(patient.box)}
    by_node: dict[int, list[Worker]] = {}
    for worker in patient.engines:
        # What runs has its memory already.
        if worker.numa_node is not None and worker.unit not in running:
            by_node.setdefault(worker.numa_node, []).append(worker)
    for number_, workers in by_node.items():
        node = there.get(number_)
        if node is None:
            raise Unseen(
                f"there is no NUMA node {number_}, to which {workers[0].name} is bound",
                f"correct numa_node of {workers[0].name} in the profile: there is {', '.join(map(str, there))}",
            )
        needed = sum(_needed(worker) for worker in workers)
        if node.available < needed:
            names = ", ".join(worker.name for worker in workers)
            yield Fault(
                f"NUMA node {number_} could give {node.available / _GIB:.1f} GiB, and {names}, bound to it, need about "
                f"{needed / _GIB:.1f} GiB",
                {"node": number_, "workers": names, "available_bytes": node.available, "needed_bytes": needed},
            )


CHECK = Check(
    "NODE_MEMORY_LOW",
    Severity.WARNING,
    "Has each NUMA node memory for what is bound to it?",
    "free memory on that node (`numactl --hardware`, `numastat -m`), lower hicache-size, or take numa_node out of the "
    "profile: bound memory does not spill over to the other node",
    "",
    (NODES, MARKED),
    _find,
    _is_bound,
)
