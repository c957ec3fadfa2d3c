"""`python -m serving WHAT [--json]`: what the stack says of itself, asked with the engine's interpreter on its host."""

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from serving import hazards, knobs
from serving.patches import fingerprint, registry, source, table


def main(argv: list[str]) -> int:
    """Run one of the subcommands.

    Returns 0; 1 when an engine started here would end over what is shown; 2 when this interpreter has no engine, or
    lacks what was asked for.
    """
    arguments = _parser().parse_args(argv)
    try:
        return {"knobs": _knobs, "patches": _patches, "hazards": _hazards}[arguments.command](arguments)
    except importlib.metadata.PackageNotFoundError as error:
        sys.stderr.write(f"error: {sys.executable} has no package {error.name}\n")
    except (knobs.EngineNotInstalled, registry.BadSetting, source.NotFound) as error:
        sys.stderr.write(f"error: {error}\n")
    return 2


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
    return parser


def _knobs(arguments: argparse.Namespace) -> int:
    known = knobs.dump()
    _show(known, knobs.lines(known), as_json=arguments.json)
    return 0


def _patches(arguments: argparse.Namespace) -> int:
    if arguments.fingerprint:
        module, _, qualname = arguments.fingerprint.partition(":")
        sys.stdout.write(f"{fingerprint.fingerprint(module, qualname)}\n")
        return 0
    if arguments.markdown:
        sys.stdout.write(f"\n{table.markdown(registry.discover())}")
        return 0
    data = table.as_data(os.environ)
    _show(data, table.lines(data), as_json=arguments.json)
    return int(table.would_stop(data))


def _hazards(arguments: argparse.Namespace) -> int:
    engine = hazards.Engine(os.environ, arguments.flags)
    found = hazards.present(engine)
    _show(hazards.as_data(engine), hazards.lines(found), as_json=arguments.json)
    return int(any(hazard.severity == "refuse" for hazard in found))


def _show(data: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        json.dump(data, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
