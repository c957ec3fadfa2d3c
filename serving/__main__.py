"""`python -m serving WHAT [--json]`: what the stack says of itself, asked with the engine's interpreter on its host."""

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

from serving import hazards, knobs
from serving.knob_flags import EngineNotInstalled
from serving.patches import fingerprint, registry, source, table
from serving.settings import BadSetting
from serving.transfer_test import command as transfer_command
from serving.transfer_test.memory import NoBuffer

READER_LEFT = 128 + signal.SIGPIPE
"""The exit status when whoever reads the answer has gone, as of a program that the signal for it has ended."""

_WHAT = re.compile(r"(\w+(?:\.\w+)*):(\S+)")


def main(argv: list[str]) -> int:
    """Run one of the subcommands.

    Returns 0; 1 when an engine started here would end over what is shown, and for nothing else; 2 when this interpreter
    has no engine, or lacks what was asked for, or one of our variables has a value that means nothing, or the answer
    could not be written; READER_LEFT.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    run = {
        "knobs": _knobs,
        "patches": _patches,
        "hazards": _hazards,
        "transfer": _transfer,
        "gpu-copies": _gpu_copies,
    }[arguments.command]
    try:
        status, text = run(parser, arguments)
    except importlib.metadata.PackageNotFoundError as error:
        return _failed(f"{sys.executable} has no package {error.name}")
    except (EngineNotInstalled, BadSetting, source.NotFound, NoBuffer) as error:
        return _failed(str(error))
    return _written(text) or status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serving", description="What the serving stack says of itself.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("knobs", help="every environment variable and flag that this version knows")
    command.add_argument("--json", action="store_true", help="for a program")
    command = commands.add_parser("patches", help="what is changed in the engine, and what an engine here needs of it")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="for a program")
    how.add_argument("--markdown", action="store_true", help="the sections of docs/patches.md")
    how.add_argument(
        "--fingerprint", metavar="MODULE:QUALNAME", help="that of a function or class of the installed engine"
    )
    command = commands.add_parser("hazards", help="settings that do harm together, and which of them are set here")
    command.add_argument("--json", action="store_true", help="for a program")
    command.add_argument("flags", nargs="*", help="after --: the flags of the engine that is asked about")
    transfer_command.add_to(commands)
    return parser


def _knobs(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, str]:
    known = knobs.dump()
    return 0, _shown(known, knobs.lines(known), as_json=arguments.json)


def _patches(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, str]:
    if arguments.fingerprint is not None:
        asked = _WHAT.fullmatch(arguments.fingerprint)
        if asked is None:
            parser.error(f"--fingerprint wants MODULE:QUALNAME, not {arguments.fingerprint!r}")
        return 0, f"{fingerprint.fingerprint(asked[1], asked[2])}\n"
    if arguments.markdown:
        return 0, f"\n{table.markdown(registry.discover())}"
    knobs.check_ours(os.environ)
    data = table.as_data(os.environ)
    return int(table.would_stop(data)), _shown(data, table.lines(data), as_json=arguments.json)


def _hazards(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, str]:
    if arguments.flags and not arguments.flags[0].startswith("--"):
        parser.error(f"{arguments.flags[0]!r} is no flag; after -- come the flags of the engine that is asked about")
    knobs.check_ours(os.environ)
    engine = hazards.Engine(os.environ, arguments.flags)
    refused = any(hazard.severity == "refuse" for hazard in hazards.present(engine))
    return int(refused), _shown(hazards.as_data(engine), hazards.lines(engine), as_json=arguments.json)


def _transfer(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, str]:
    status, data, lines = transfer_command.transfer(parser, arguments)
    return status, _shown(data, lines, as_json=arguments.json)


def _gpu_copies(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, str]:
    status, data, lines = transfer_command.gpu_copies(parser, arguments)
    return status, _shown(data, lines, as_json=arguments.json)


def _shown(data: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> str:
    return f"{json.dumps(data, indent=1)}\n" if as_json else "".join(f"{line}\n" for line in lines)


def _written(text: str) -> int:
    """Write the answer. Returns 0, or the exit status that says that it was not."""
    if sys.stdout is None:
        return _failed("the answer could not be written: standard output is closed")
    left = memoryview(text.encode(sys.stdout.encoding, "backslashreplace"))
    try:
        while left:
            # An unbuffered one (PYTHONUNBUFFERED) takes what it can, and the text layer would lose the rest.
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
    except OSError as error:
        # Python would try to write what is left when it ends, and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_LEFT
        return _failed(f"the answer could not be written: {error.strerror}")
    return 0


def _failed(why: str) -> int:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: {why}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
