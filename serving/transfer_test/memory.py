"""The memory of one rank, host or GPU, filled and checked by the same code: numpy and torch agree on what it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serving.transfer_test import pattern
from serving.untyped import Untyped

CPU: Final = "cpu"

_CHUNK_WORDS: Final = 2 << 20
"""16 MiB are looked at at a time, so that a check needs little memory of its own."""

_SPARE_BYTES: Final = 512 << 20
"""What has to stay free beside the buffer: the CUDA context, the check, and whoever else lives there."""

_PAGE: Final = 4096
_MIB: Final = 1 << 20


class NoBuffer(Exception):
    """The buffer does not fit, or there is no such GPU; the message says where, and what to do."""


@dataclass(frozen=True)
class Slot:
    """A part of the memory, in bytes from its beginning, and the tag of the write that belongs there."""

    offset: int
    size: int
    tag: int


@dataclass(frozen=True)
class Difference:
    """A part of the memory that is not as it should be: from which byte, how many words, what the first of them is.

    `slot` is the write that should be there; None where nothing should have been written.
    """

    offset: int
    words: int
    found: int
    slot: Slot | None

    def __str__(self) -> str:
        where = f"{self.words} words are wrong, the first at byte {self.offset}: {pattern.origin(self.found)}"
        return where if self.slot is not None else f"outside of what was written {where}"


class Memory:
    """A buffer of whole words. `kind` is NIXL's: DRAM or VRAM."""

    def __init__(
        self,
        words: Untyped,
        arange: Callable[[int, int], Untyped],
        *,
        pointer: int,
        kind: str,
        device: int,
        settle: Callable[[], None],
    ) -> None:
        """`words` is an array of int64, `arange(low, high)` makes one beside it, `settle` waits until both are done."""
        self._words = words
        self._arange = arange
        self.settle = settle
        self.pointer = pointer
        self.kind = kind
        self.device = device
        self.size = len(words) * pattern.WORD

    def fill(self, slot: Slot) -> None:
        """Write a slot's pattern."""
        base = pattern.word(slot.tag, 0)
        for low, high in _chunks(0, slot.size // pattern.WORD):
            at = slot.offset // pattern.WORD
            self._words[at + low : at + high] = self._arange(low, high) + base
        self.settle()

    def poison(self, offset: int, size: int) -> None:
        """Make a part as it was before anything was written."""
        for low, high in _chunks(offset // pattern.WORD, (offset + size) // pattern.WORD):
            self._words[low:high] = pattern.POISON
        self.settle()

    def check(self, slot: Slot) -> Difference | None:
        """What is wrong in one slot."""
        self.settle()
        at = slot.offset // pattern.WORD
        return self._compare(at, slot.size // pattern.WORD, slot)

    def sweep(self) -> Difference | None:
        """What is not poison, anywhere."""
        self.settle()
        return self._compare(0, len(self._words), None)

    def _compare(self, at: int, count: int, slot: Slot | None) -> Difference | None:
        first: tuple[int, int] | None = None
        wrong_words = 0
        for low, high in _chunks(0, count):
            there = self._words[at + low : at + high]
            wanted = pattern.POISON if slot is None else self._arange(low, high) + pattern.word(slot.tag, 0)
            wrong = there != wanted
            wrong_here = int(wrong.sum())
            if wrong_here and first is None:
                place = int(wrong.nonzero()[0][0])
                first = ((at + low + place) * pattern.WORD, int(there[place]))
            wrong_words += wrong_here
        return None if first is None else Difference(first[0], wrong_words, first[1], slot)


def _chunks(low: int, high: int) -> Sequence[tuple[int, int]]:
    return [(at, min(at + _CHUNK_WORDS, high)) for at in range(low, high, _CHUNK_WORDS)]


def allocate(device: str, size: int, together: int = 1) -> Memory:
    """A buffer of that many bytes on `cpu`, or on the CUDA device of that index. So many ranks take one there at the
    same moment.

    Raises:
        NoBuffer: they would not fit with room to spare, or there is no such GPU.
    """
    memory = _host_memory(size, together) if device == CPU else _gpu_memory(int(device), size, together)
    memory.poison(0, memory.size)
    return memory


def _host_memory(size: int, together: int) -> Memory:
    import numpy

    _require("this host", free_host_bytes(), size * together, "end what needs it, or test with a smaller buffer")
    raw = numpy.empty(size + _PAGE, dtype=numpy.uint8)
    skip = -raw.ctypes.data % _PAGE
    words = raw[skip : skip + size].view(numpy.int64)
    return Memory(
        words,
        lambda low, high: numpy.arange(low, high, dtype=numpy.int64),
        pointer=words.ctypes.data,
        kind="DRAM",
        device=0,
        settle=lambda: None,
    )


def _gpu_memory(index: int, size: int, together: int) -> Memory:
    import torch

    require_gpu(index)
    # As SGLang does for each of its ranks: the current context is the one that NIXL's threads take.
    torch.cuda.set_device(index)
    free, _ = torch.cuda.mem_get_info(index)
    remedy = "an engine fills its GPUs: stop it first, or test with a smaller buffer"
    _require(f"GPU {index}", free, size * together, remedy)
    return on_tensor(torch.empty(size // pattern.WORD, dtype=torch.int64, device=f"cuda:{index}"))


def require_gpu(index: int) -> None:
    """Raises NoBuffer where torch has no GPU of that index."""
    import torch

    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= visible:
        raise NoBuffer(f"torch finds {visible} GPUs here, and the test is to use the one of index {index}")


def on_tensor(words: Untyped) -> Memory:
    """A tensor of int64 as a memory, wherever it lies."""
    import torch

    on_gpu = words.device.type == "cuda"
    return Memory(
        words,
        lambda low, high: torch.arange(low, high, dtype=torch.int64, device=words.device),
        pointer=words.data_ptr(),
        kind="VRAM" if on_gpu else "DRAM",
        device=words.device.index or 0,
        settle=(lambda: torch.cuda.synchronize(words.device)) if on_gpu else (lambda: None),
    )


def _require(where: str, free: int | None, size: int, remedy: str) -> None:
    if free is not None and free < size + _SPARE_BYTES:
        raise NoBuffer(
            f"{where} has {free // _MIB} MiB free, and the test needs {(size + _SPARE_BYTES) // _MIB}: {remedy}"
        )


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """What this process may still take, by the host's memory and by its control group; None where neither says."""
    known = (_available(root / "proc/meminfo"), _left_in_group(root / "sys/fs/cgroup"))
    return min((free for free in known if free is not None), default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _left_in_group(group: Path) -> int | None:
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Files that nobody reads at the moment are dropped when memory is needed.
        return max(0, limit - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        # No limit is the word "max".
        return None
