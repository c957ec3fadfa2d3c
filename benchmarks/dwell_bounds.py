"""How often the bound of `tune-timeout` holds, over many simulated histories whose true quantiles are known.

    python -m benchmarks.dwell_bounds [--seeds N]

For each kind of history: how often a bound was stated, how often the true quantile lay above it, and how often none was
stated, for want of evidence or because what there was did not hang together. The table goes to stdout.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from dsv4ctl.tuning.bound import CONFIDENCE
from tests.calibration.dwell_histories import KINDS
from tests.calibration.dwell_rates import Coverage, coverage, window_of

COLUMNS = ("times in the queue", "window", "histories", "bound stated", "true quantile above it", "none stated")


def row(found: Coverage) -> str:
    """One kind as a row."""
    share = f" ({found.missed / found.stated:.1%})" if found.stated else ""
    cells = (found.kind, found.window, found.histories, found.stated, f"{found.missed}{share}", found.refused)
    return f"| {' | '.join(map(str, cells))} |"


def measured(case: tuple[int, int]) -> Coverage:
    """The coverage of one kind, by its number."""
    number, seeds = case
    kind = KINDS[number]
    return coverage(kind, window_of(kind), range(seeds))


def main(arguments: list[str]) -> int:
    """Print the table; 0 if the bound held as often as it says, for every kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dwell_bounds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    seeds = parser.parse_args(arguments).seeds
    held = True
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    with ProcessPoolExecutor() as pool:
        for found in pool.map(measured, [(number, seeds) for number in range(len(KINDS))]):
            held &= found.missed <= (1 - CONFIDENCE) * max(1, found.stated)
            sys.stdout.write(row(found) + "\n")
            sys.stdout.flush()
    return int(not held)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
