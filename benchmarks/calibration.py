"""How often watch-inflight would be wrong on a stock engine, over many simulated watches of ten minutes.

    python -m benchmarks.calibration [--seeds N]

For each load: of a healthy queue, how many watches claimed a pin; of one in which a request is pinned after five
minutes, how many found it in the other five, and after how long. Counts alone are judged: the engine says no age, and
decode is not asked. The table goes to stdout.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.calibration.rates import LOADS, Rates, rates
from tests.calibration.traces import Load

COLUMNS = ("mean occupancy", "stays", "arrivals", "what leaves", "false pins", "pins found", "half of them within")


def row(found: Rates) -> str:
    """One load as a row."""
    load = found.load
    half = f"{found.found_s[len(found.found_s) // 2]:.0f} s" if found.found_s else "-"
    cells = (
        *(f"{load.occupancy:g}", f"sigma {load.sigma:g}", "in bursts" if load.bursts else "one by one"),
        *("counted" if found.counts_left else "not known", f"{found.false} of {found.watches}"),
        *(f"{len(found.found_s)} of {found.watches}", half),
    )
    return f"| {' | '.join(cells)} |"


def judged(case: tuple[Load, bool, int]) -> Rates:
    """The rates of one load."""
    load, counts_left, seeds = case
    return rates(load, range(seeds), counts_left=counts_left)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    seeds = parser.parse_args(arguments).seeds
    cases = [(load, counts_left, seeds) for counts_left in (True, False) for load in LOADS]
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    with ProcessPoolExecutor() as pool:
        for found in pool.map(judged, cases):
            sys.stdout.write(row(found) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
