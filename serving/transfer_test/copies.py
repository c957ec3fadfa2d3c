"""Plain copies between GPUs, content checked: a driver may say that peer access works while writes do not land
(vllm-project/vllm issue 51513)."""

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from serving.transfer_test import pattern
from serving.transfer_test.memory import Memory, Slot, on_tensor, require_gpu
from serving.transfer_test.report import SCHEMA_VERSION
from serving.untyped import Untyped

_GB: Final = 1e9


@dataclass(frozen=True)
class Copy:
    """One direction between two GPUs, by their indices. `what` is what was wrong at the destination; None: nothing.

    `peer_access` is the driver's word; None where it was not asked.
    """

    source: int
    destination: int
    what: str | None
    gb_per_s: float
    peer_access: bool | None


def copy_checked(
    source: Untyped, destination: Untyped, numbers: tuple[int, int], sequence: int
) -> tuple[str | None, float]:
    """Copy one tensor of int64 to another of its size, and look at what arrived.

    `numbers` are those of the source and the destination, for the pattern. Returns what is wrong, if anything is, and
    the seconds that the copy took.
    """
    there, here = on_tensor(source), on_tensor(destination)
    slot = Slot(0, there.size, pattern.tag(*numbers, there.size, sequence))
    there.fill(slot)
    here.poison(0, here.size)
    began = time.monotonic()
    destination.copy_(source)
    _settle(there, here)
    seconds = time.monotonic() - began
    difference = here.check(slot)
    return None if difference is None else str(difference), seconds


def _settle(*memories: Memory) -> None:
    for memory in memories:
        memory.settle()


def run(devices: Sequence[int], size: int) -> dict[str, Any]:
    """Copy between every two GPUs, in both directions.

    What is being copied is said on standard error: a copy that never ends can say nothing afterwards.

    Raises:
        NoBuffer: torch finds no such GPU.
        RuntimeError: there is no room, or a copy fails.
    """
    import torch

    for device in devices:
        require_gpu(device)
    tensors = {}
    for device in devices:
        tensors[device] = torch.empty(size // pattern.WORD, dtype=torch.int64, device=f"cuda:{device}")
    found: list[Copy] = []
    for sequence, (source, destination) in enumerate(itertools.permutations(devices, 2)):
        sys.stderr.write(f"copying from GPU {source} to GPU {destination}\n")
        sys.stderr.flush()
        numbers = (devices.index(source), devices.index(destination))
        # The first copy sets up peer access, and is no measure.
        what, _ = copy_checked(tensors[source], tensors[destination], numbers, 2 * sequence)
        again, seconds = copy_checked(tensors[source], tensors[destination], numbers, 2 * sequence + 1)
        peer = torch.cuda.can_device_access_peer(destination, source)
        found.append(Copy(source, destination, what or again, size / seconds / _GB, peer))
    return {"schema_version": SCHEMA_VERSION, "size_bytes": size, "copies": [asdict(copy) for copy in found]}


def lines(data: dict[str, Any]) -> Sequence[str]:
    """For a person."""
    return [
        f"GPU {copy['source']} to GPU {copy['destination']}: {copy['gb_per_s']:.1f} GB/s, "
        f"peer access {'yes' if copy['peer_access'] else 'no'}, {copy['what'] or 'all there'}"
        for copy in data["copies"]
    ]
