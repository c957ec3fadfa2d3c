"""Faults against a running stack, from fixed seeds: what becomes of the requests, and of what the engines hold.

    python -m benchmarks.reliability [--episodes N] [--first-seed N] [--journal FILE]
        [--profile NAME] [--stock | --naive | --without PATCHES]

Each episode is one line of the journal, written when it is over; a run that was interrupted goes on behind the last
one. Progress goes to stderr, the table to stdout. After an episode that the stack did not recover from it is started
anew, so that no episode suffers from another. `--stock` runs the same against SGLang as it is,
`--naive` against SGLang with a watchdog that frees pages at once, and `--without` against a part of the patches: it
shows what each of them is for.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.stack.faults.checks import failures, gauge_frozen_s, pinned_for_s
from tests.stack.faults.episodes import Evidence, ask_further, run_episode
from tests.stack.faults.plan import FAULTS, Episode, Fault, fault_of, plan_episode
from tests.stack.faults.stack import ALL, INSTEAD, FaultStack, Knobs, start_stack

FURTHER = 200
HARMED = frozenset({"NOT_IDLE", "NOT_SERVING", "CANNOT_LOOK", "BROKEN"})
"""After an episode with one of these the stack is started anew."""

COLUMNS = (
    *("fault", "episodes", "passed", "requests", "answered right", "wrong answers"),
    *("refused", "went away", "no answer", "slowest answer", "longest pin"),
)


@dataclass(frozen=True)
class Line:
    """One episode in the journal. `failed` are the codes of what was wrong, `evidence` what shows it."""

    seed: int
    fault: Fault
    profile: str
    without: str
    requests: int
    fates: dict[str, int]
    wrong: int
    slowest_s: float
    limit_s: float
    pinned_s: float
    gauge_frozen_s: float
    settled_s: float
    took_s: float
    failed: tuple[str, ...]
    evidence: tuple[str, ...]


def line_of(evidence: Evidence, knobs: Knobs) -> Line:
    """What is kept of an episode."""
    found = failures(evidence, timeout_s=knobs.timers.inflight_timeout_s)
    waits = [outcome.ended_s - outcome.sent_s for outcome in evidence.outcomes]
    return Line(
        seed=evidence.episode.seed,
        fault=evidence.episode.fault,
        profile=knobs.profile,
        without=knobs.without,
        requests=len(evidence.outcomes),
        fates=dict(Counter(outcome.fate for outcome in evidence.outcomes)),
        wrong=sum(not outcome.right for outcome in (*evidence.outcomes, *evidence.probes)),
        slowest_s=round(max(waits), 1),
        limit_s=round(evidence.limit_s, 1),
        pinned_s=round(pinned_for_s(evidence.loads), 1),
        gauge_frozen_s=round(gauge_frozen_s(evidence), 1),
        settled_s=round(evidence.settled_after_s, 1),
        took_s=round(evidence.ended_s - evidence.began_s, 1),
        failed=tuple(sorted({failure.code for failure in found})),
        evidence=tuple(f"{failure.code}: {failure.evidence}" for failure in found),
    )


def broken_line(episode: Episode, knobs: Knobs, error: BaseException, took_s: float) -> Line:
    """That of an episode which could not be carried to its end."""
    return Line(
        seed=episode.seed,
        fault=episode.fault,
        profile=knobs.profile,
        without=knobs.without,
        requests=len(episode.asked),
        fates={},
        wrong=0,
        slowest_s=0.0,
        limit_s=0.0,
        pinned_s=0.0,
        gauge_frozen_s=0.0,
        settled_s=0.0,
        took_s=round(took_s, 1),
        failed=("BROKEN",),
        evidence=(f"BROKEN: {type(error).__name__}: {error}",),
    )


def read_journal(path: Path, knobs: Knobs) -> dict[int, Line]:
    """The lines of a journal by seed, but those of another engine and one that was cut short."""
    found: dict[int, Line] = {}
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                values = json.loads(text)
            except json.JSONDecodeError:
                continue
            line = Line(**{**values, "failed": tuple(values["failed"]), "evidence": tuple(values["evidence"])})
            if (line.profile, line.without) == (knobs.profile, knobs.without):
                found[line.seed] = line
    return found


def table(lines: Iterable[Line]) -> str:
    """The lines as Markdown, one row a fault and one for all."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    known = list(lines)
    groups = [(fault, [line for line in known if line.fault == fault]) for fault in FAULTS]
    for name, group in [*groups, ("all", known)]:
        if not group:
            continue
        fates: Counter[str] = Counter()
        for line in group:
            fates.update(line.fates)
        refused = fates["refused"] + fates["cut off"]
        rows.append(
            f"| {name} | {len(group)} | {sum(not line.failed for line in group)} "
            f"| {sum(line.requests for line in group)} | {fates['answered']} | {sum(line.wrong for line in group)} "
            f"| {refused} | {fates['went away']} | {fates['no answer']} "
            f"| {max(line.slowest_s for line in group):.1f} s | {max(line.pinned_s for line in group):.1f} s |"
        )
    return "\n".join(rows)


@dataclass
class Bench:
    """A stack that is started when it is needed, and anew when an episode has harmed it."""

    knobs: Knobs
    folder: Path
    starts: int = 0
    stack: FaultStack | None = None

    def ready(self) -> FaultStack:
        """The running stack."""
        if self.stack is None:
            self.starts += 1
            fresh = self.folder / str(self.starts)
            fresh.mkdir()
            self.stack = start_stack(fresh, "reliability", self.knobs)
        return self.stack

    def close(self) -> None:
        """End it."""
        if self.stack is not None:
            self.stack.close()
            self.stack = None

    def episode(self, episode: Episode) -> Line:
        """Carry one out."""
        began = time.monotonic()
        try:
            line = line_of(asyncio.run(run_episode(self.ready(), episode)), self.knobs)
        except Exception as error:  # noqa: BLE001 - whatever ends one episode, the others are to run
            line = broken_line(episode, self.knobs, error, time.monotonic() - began)
        if HARMED & set(line.failed):
            self.close()
        return line


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}  {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Run what the journal does not have yet, print the table; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--journal", type=Path, help="default: in the directory for temporary files")
    parser.add_argument("--profile", default="cpu", help="a built-in profile, by default %(default)s")
    parser.add_argument("--without", default="", metavar="PATCHES", help="switch these off, by name with commas")
    parser.add_argument("--stock", dest="without", action="store_const", const=ALL, help="the same as --without all")
    instead = "SGLang as it is with a naive watchdog"
    parser.add_argument("--naive", dest="without", action="store_const", const=INSTEAD, help=instead)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    knobs = Knobs(profile=options.profile, without=options.without)
    journal: Path = options.journal or Path(tempfile.gettempdir()) / "dsv4-reliability.jsonl"
    known = read_journal(journal, knobs)
    wanted = range(options.first_seed, options.first_seed + options.episodes)
    say(f"journal {journal}: {sum(seed in known for seed in wanted)} of {len(wanted)} episodes are in it")
    with tempfile.TemporaryDirectory(prefix="reliability") as folder:
        bench = Bench(knobs, Path(folder))
        try:
            for seed in wanted:
                if seed in known:
                    continue
                known[seed] = line = bench.episode(plan_episode(seed, fault_of(seed), knobs.timers))
                with journal.open("a") as file:
                    file.write(json.dumps(asdict(line)) + "\n")
                say(f"{seed} {line.fault}: {line.took_s} s, {line.fates}, {', '.join(line.failed) or 'passed'}")
                for words in line.evidence:
                    say(f"    {words}")
            served = asyncio.run(ask_further(bench.ready(), FURTHER))
        finally:
            bench.close()
    lines = [known[seed] for seed in wanted]
    passed = sum(not line.failed for line in lines)
    sys.stdout.write(f"{table(lines)}\n\n{passed} of {len(lines)} episodes passed; ")
    sys.stdout.write(f"{served} of {FURTHER} further requests were answered right.\n")
    return int(passed != len(lines) or served != FURTHER)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
