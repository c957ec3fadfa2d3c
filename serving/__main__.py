"""`python -m serving WHAT [--json]`: what the stack says of itself, asked with the engine's interpreter on its host."""

import argparse
import json
import sys

from serving import knobs
from serving.patches import fingerprint


def main(argv: list[str]) -> int:
    """Run one of the subcommands. Exit status 0, or 2 when this interpreter has no engine, or not what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m serving", description="What the serving stack says of itself.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("knobs", help="every environment variable and flag that this version knows")
    command.add_argument("--json", action="store_true", help="for a program")
    command = commands.add_parser("patches", help="what is changed in the engine")
    command.add_argument(
        "--fingerprint", metavar="MODULE:QUALNAME", help="that of a function or class of the installed engine"
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "patches":
        module, _, qualname = arguments.fingerprint.partition(":")
        sys.stdout.write(f"{fingerprint.fingerprint(module, qualname)}\n")
        return 0
    try:
        known = knobs.dump()
    except knobs.EngineNotInstalled as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if arguments.json:
        json.dump(known, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in knobs.lines(known))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
