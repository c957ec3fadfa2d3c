"""How far NCCL may go with peer-to-peer copies, and how far apart a worker's GPUs are.

As NCCL reads it (src/graph/paths.cc, ncclGetLevel): a name in capitals, or an old number; anything else is ignored.
"""

import itertools
import re

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.looks.gpus import Gpu, distances, gpus, own_gpus
from dsv4ctl.doctor.looks.plan import gpu_workers, ranks
from dsv4ctl.stack import Worker

VARIABLE = "NCCL_P2P_LEVEL"
SOURCE = "https://github.com/NVIDIA/nccl/blob/master/src/graph/paths.cc"

_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_OLD = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
# NCCL knows no difference between one host bridge and several of the same NUMA node.
_OF_TOPOLOGY = {"NV": "NVL", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def p2p_level(worker: Worker) -> str | None:
    """The level that a worker is given; None where NCCL chooses."""
    text = worker.env.get(VARIABLE, "")
    if text in _LEVELS:
        return text
    if match := re.match(r"[0-9]+", text):
        return _OLD[min(int(match[0][:4]), len(_OLD) - 1)]
    return None


def sets_level(patient: Patient) -> bool:
    """Whether a planned engine with several ranks on this host is given a level."""
    return any(p2p_level(worker) is not None and ranks(worker) > 1 for worker in gpu_workers(patient))


def pairs(patient: Patient, worker: Worker) -> list[tuple[Gpu, Gpu, str]]:
    """Each pair of a worker's GPUs, with their path as NCCL calls it.

    Raises:
        Unseen
    """
    own = own_gpus(worker, gpus(patient.box))
    far = distances(patient.box)
    return [
        (one, other, _OF_TOPOLOGY[far[one.index, other.index]])
        for one, other in itertools.combinations(own, 2)
        if (one.index, other.index) in far
    ]


def reaches(level: str, path: str) -> bool:
    """Whether NCCL copies from peer to peer over that path at that level."""
    return _LEVELS.index(path) <= _LEVELS.index(level)
