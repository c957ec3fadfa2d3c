"""`python -m serving transfer` and `python -m serving gpu-copies`: their arguments, and what they answer."""

import argparse
import os
import re
from collections.abc import Iterable
from typing import Any, Final

from serving.transfer_test import pattern
from serving.transfer_test.memory import CPU
from serving.transfer_test.rank import DESTINATION, SOURCE, WORD_VARIABLE, end_after, end_with_parent

SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
"""From a page of KV to a long prompt's."""

_DEVICE = re.compile(r"cpu|\d+")
_MORE_S: Final = 30.0
_COPY_BYTES: Final = 64 << 20

Answered = tuple[int, dict[str, Any], Iterable[str]]


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both commands to the parser of `python -m serving`."""
    command = commands.add_parser("transfer", help="one side of a test of NIXL writes; run it on both at the same time")
    command.add_argument("--json", action="store_true", help="for a program")
    command.add_argument("--side", choices=(SOURCE, DESTINATION), required=True)
    command.add_argument(
        "--devices", nargs="+", type=_device, required=True, help="cpu, or a CUDA index, for each rank"
    )
    command.add_argument("--meet", type=_address, required=True, help="ADDRESS:PORT on which the source side listens")
    command.add_argument("--others", type=int, default=1, help="how many ranks the other side has (source side only)")
    command.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="of the writes, in bytes")
    command.add_argument("--bytes", type=int, help="the buffer of each rank; the largest size where it is not given")
    command.add_argument("--join-within", type=float, default=60.0, help="seconds until all ranks have to be there")
    command.add_argument("--within", type=float, default=180.0, help="seconds for the test after that")
    command.add_argument("--transfer-within", type=float, default=10.0, help="seconds for one write")
    command = commands.add_parser("gpu-copies", help="copy between every two GPUs, both ways, and check the content")
    command.add_argument("--json", action="store_true", help="for a program")
    command.add_argument("--devices", nargs="+", type=int, required=True, help="CUDA indices")
    command.add_argument("--bytes", type=int, default=_COPY_BYTES, help="of each copy")
    command.add_argument("--within", type=float, default=120.0, help="seconds until the process is ended")


def transfer(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answered:
    """One side of a test."""
    from serving.transfer_test.conduct import Wanted
    from serving.transfer_test.report import lines
    from serving.transfer_test.sides import Side, end_by_exception, run_destination, run_source

    sizes = tuple(sorted(size // pattern.WORD * pattern.WORD for size in arguments.sizes))
    size_bytes = max(arguments.bytes or 0, sizes[-1]) // pattern.WORD * pattern.WORD
    if sizes[0] < pattern.WORD:
        parser.error(f"a size is {pattern.WORD} bytes or more")
    if max(len(arguments.devices), arguments.others) > pattern.RANKS:
        parser.error(f"a side has {pattern.RANKS} ranks at most")
    end_with_parent()
    end_by_exception()
    end_after(arguments.join_within + arguments.within + _MORE_S)
    side = Side(
        arguments.side,
        tuple(arguments.devices),
        arguments.meet,
        os.environ.get(WORD_VARIABLE, ""),
        arguments.join_within,
        arguments.within,
    )
    if arguments.side == DESTINATION:
        data = run_destination(side)
        return 0, data, (f"rank {rank['rank']} {rank['ending']}" for rank in data["ranks"])
    wanted = Wanted(sizes, size_bytes, transfer_within_s=arguments.transfer_within)
    data = run_source(side, arguments.others, wanted)
    return 0, data, lines(data)


def gpu_copies(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answered:
    """Plain copies."""
    from serving.transfer_test import copies

    end_with_parent()
    end_after(arguments.within)
    data = copies.run(arguments.devices, arguments.bytes // pattern.WORD * pattern.WORD)
    return 0, data, copies.lines(data)


def _device(word: str) -> str:
    if not _DEVICE.fullmatch(word):
        raise argparse.ArgumentTypeError(f"{word!r} is neither {CPU} nor a CUDA index")
    return word


def _address(word: str) -> tuple[str, int]:
    address, _, port = word.rpartition(":")
    if not address or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{word!r} is not ADDRESS:PORT")
    return address.strip("[]"), int(port)
