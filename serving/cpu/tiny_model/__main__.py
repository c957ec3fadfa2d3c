"""python -m serving.cpu.tiny_model DIR [--variant tiny|kv-heavy]"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from serving.cpu.tiny_model import VARIANTS, TinyModelError, write_model


def main(arguments: Iterable[str]) -> int:
    """Write the model that the command line asks for; 0 if it is there afterwards."""
    parser = argparse.ArgumentParser(prog="python -m serving.cpu.tiny_model", description="Write a tiny model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="tiny")
    chosen = parser.parse_args(list(arguments))
    try:
        write_model(chosen.directory, VARIANTS[chosen.variant])
    except (TinyModelError, OSError) as error:
        sys.stderr.write(f"tiny model: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
