"""A worker bound to the memory of one socket, and a GPU of its on the other."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import BY_BUS_ID, GPUS, open_items
from dsv4ctl.doctor.looks.memory import NODES, nodes
from dsv4ctl.doctor.looks.pci import PCI, planned_cards
from dsv4ctl.doctor.looks.plan import gpu_workers
from dsv4ctl.findings import Severity


def _is_bound(patient: Patient) -> bool:
    return any(worker.numa_node is not None and worker.gpus for worker in gpu_workers(patient))


def _find(patient: Patient) -> Iterator[Fault]:
    if len(nodes(patient.box)) < 2:
        return
    cards = planned_cards(patient)
    for card in cards:
        for worker in gpu_workers(patient):
            if worker.numa_node is None or not worker.gpus or (is_own := card.is_of(worker)) is False:
                continue
            if is_own is None:
                raise Unseen(f"the driver does not say which GPUs are those of {worker.name}")
            node = card.place.device.numa_node
            if node is None:
                raise Unseen(
                    f"the firmware does not say on which node {card.named} is",
                    "see in the board's manual which slots belong to which socket",
                )
            if node != worker.numa_node:
                yield Fault(
                    f"{card.named} of {worker.name} is on NUMA node {node}, and the worker is bound to node "
                    f"{worker.numa_node}: whatever passes between them crosses the sockets",
                    {"gpu": card.index, "worker": worker.name, "node": node, "bound_to": worker.numa_node},
                )
    for worker in gpu_workers(patient):
        if worker.numa_node is not None and open_items(worker):
            raise Unseen(f"GPUs of {worker.name}: {'; '.join(worker.unresolved)}", BY_BUS_ID)


CHECK = Check(
    "GPU_ON_OTHER_NODE",
    Severity.WARNING,
    "Is every GPU on the NUMA node that its worker is bound to?",
    "give the worker the GPUs of its node, or its GPUs' node as numa_node (`nvidia-smi topo -m` shows both)",
    "",
    (GPUS, NODES, PCI),
    _find,
    _is_bound,
)
