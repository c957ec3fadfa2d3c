"""How often the search of `bisect-env` is right, and what it costs, beside its rivals, where the culprits are known.

    python -m benchmarks.bisect_search [--sessions N]

Each world is played by `bisect-env`, by halving with three unanimous runs, and by delta debugging with a fixed
number of repeats. The tables go to stdout, in Markdown: what one culprit costs at rates that are known, and how often
answers are right where rates, background, clustering and invalid launches are drawn anew for each session.
"""

import argparse
import sys
from collections.abc import Iterable

from dsv4ctl.bisect.options import Options
from tests.calibration.bisect_rates import Player, Rates, ours, rates, rival
from tests.calibration.bisect_rivals import delta_debugging, halving
from tests.calibration.bisect_worlds import Kind, mixed, nothing, one_of

OPTIONS = Options()
COSTS = (
    one_of(16, 1.0, 0.0),
    one_of(16, 0.9, 0.0),
    one_of(16, 0.9, 0.02),
    one_of(16, 0.5, 0.0),
    one_of(16, 0.5, 0.02),
    one_of(16, 0.5, 0.05),
    one_of(16, 0.3, 0.0),
    one_of(16, 0.3, 0.02),
    one_of(32, 0.9, 0.0),
    one_of(32, 0.5, 0.02),
)
MIXED = (
    mixed("one", (1,)),
    mixed("one", (1,), units=32),
    mixed("two together", (2,)),
    mixed("two together", (2,), units=32),
    mixed("two by themselves", (1, 1)),
    mixed("two by themselves", (1, 1), units=32),
    mixed("one, masked by half", (1,), masked=0.5),
    nothing(16),
    nothing(32),
)
RIVALS: tuple[tuple[str, Player], ...] = (
    ("halving, three unanimous", rival(halving)),
    ("ddmin, any of five", rival(delta_debugging)),
)
COST_COLUMNS = (
    "culprit",
    "ends and search",
    "one unit 95 % likely",
    "rightly",
    "in all",
    "95 % within",
    "guilty",
    "wrong",
)
MIXED_COLUMNS = ("culprits", "method", "launches", "95 % within", "guilty", "wrong", "all named", "acquitted", "open")


def line(cells: Iterable[object]) -> None:
    """One row, at once: there is long to wait for the next."""
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


def head(columns: tuple[str, ...]) -> None:
    """The head of a table."""
    line(columns)
    sys.stdout.write(f"{'|---' * len(columns)}|\n")


def share(count: int, of: int) -> str:
    """As a percentage."""
    return f"{count / of:.1%}" if of else "-"


def cost(found: Rates) -> None:
    """What one culprit took: until it was nominated, until it was likely, until it was guilty."""
    likely_right = share(found.likely_right, found.sessions)
    guilty, wrong = share(found.guilty, found.sessions), share(found.wrong, found.guilty)
    costs = (f"{found.searched:.1f}", f"{found.likely:.1f}", likely_right, f"{found.mean:.1f}", found.most)
    line((found.kind.name, *costs, guilty, wrong))


def verdicts(method: str, found: Rates) -> None:
    """What was said. Where there is no culprit, the wrong are a share of all sessions."""
    wrong = share(found.wrong, found.guilty if found.kind.culprits else found.sessions)
    whole = share(found.whole, found.sessions) if found.kind.culprits else "-"
    left = found.sessions - found.guilty - found.acquitted
    said = (share(found.guilty, found.sessions), wrong, whole)
    unsaid = (share(found.acquitted, found.sessions), share(left, found.sessions))
    line((found.kind.name, method, f"{found.mean:.1f}", found.most, *said, *unsaid))


def held(found: Rates) -> bool:
    """Whether "guilty" was right as often as it says."""
    return found.wrong <= OPTIONS.error * (found.guilty if found.kind.culprits else found.sessions)


def main(arguments: list[str]) -> int:
    """Print the tables; 0 if what `bisect-env` calls guilty was so as often as it says, in every kind of world."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bisect_search", description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000, help="of each kind of world")
    seeds = range(parser.parse_args(arguments).sessions)
    right = True
    sys.stdout.write(f"Launches of {len(seeds)} sessions each, at rates that are always the same.\n\n")
    head(COST_COLUMNS)
    for kind in COSTS:
        found = rates(kind, ours(OPTIONS, watch=True), seeds)
        right &= held(found)
        cost(found)
    sys.stdout.write("\nThe same at rates, and with all else, as they may come.\n\n")
    head(MIXED_COLUMNS)
    for kind in (*MIXED, *_known(COSTS)):
        found = rates(kind, ours(OPTIONS), seeds)
        right &= held(found)
        verdicts("bisect-env", found)
        for method, play in RIVALS:
            verdicts(method, rates(kind, play, seeds))
    return int(not right)


def _known(kinds: Iterable[Kind]) -> list[Kind]:
    """Those of the first table in which the rivals are compared with it."""
    return [kind for kind in kinds if kind.units == 16 and kind.rates[0] in (0.9, 0.5) and kind.backgrounds[0] < 0.05]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
