"""How long clients go without an answer: `dsv4ctl co-restart` against a script that stops both halves and starts them.

    python -m benchmarks.co_restart [--runs N] [--clients N]

The script ends prefill and decode with SIGTERM, kills after 30 s what is left, starts them again, waits until they are
healthy, and leaves the router as it is. Both are done in turn to one stack under the same clients, which try again at
once; and to two: one whose router has the settings of the `cpu` profile, one whose router has its own defaults. The
figure is the longest time without a right answer, as the clients saw it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.hosts.connect import LOCAL, open_host
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec
from dsv4ctl.supervisors.process import ProcessSupervisor
from dsv4ctl.targets import open_target
from dsv4ctl.waiting import wait_until
from tests.co_restarts import Stack
from tests.engine import Dsv4, write_profile
from tests.retrying import RetryingClients, Seen

DEFAULTS = (
    'without = ["router.args.health-check-interval-secs", "router.args.health-success-threshold", '
    '"router.args.disable-circuit-breaker", "router.args.retry-max-retries"]'
)
ROUTERS = {"the profile's router": "", "a router with its defaults": DEFAULTS}
FLOWING = 24
TERM_S = 30.0
BACK_WITHIN_S = 400.0


@dataclass(frozen=True)
class Measured:
    """One restart as the clients saw it."""

    downtime_s: float
    seen: Seen


def by_co_restart(stack: Stack) -> None:
    """The command."""
    stack.restart()


def by_script(stack: Stack) -> None:
    """What a person would write."""
    os.environ["XDG_STATE_HOME"] = str(stack.dsv4.state)
    with open_target(str(stack.profile.path), open_host) as target:
        ((_, record),) = target.records
        plan = {worker.name: worker for worker in target.stack.workers} if target.stack else {}
        place = target.fleet[LOCAL]
        assert isinstance(place.supervisor, ProcessSupervisor)
        engines = [worker for worker in record.workers if worker.role != "router"]
        handles = {worker.name: worker.handle for worker in engines if worker.handle is not None}
        for handle in handles.values():
            place.supervisor.terminate(handle)
        for handle in handles.values():
            _ended(place.supervisor, handle)
        new = record
        for worker in engines:
            planned = plan[worker.name]
            spec = UnitSpec(worker.unit, planned.argv, {"HOME": place.site.home, **planned.env}, cwd=place.site.home)
            Path(planned.env["TMPDIR"]).mkdir(parents=True, exist_ok=True)
            new = new.with_handle(worker.name, place.supervisor.start(spec))
        place.store.save(new)
        for worker in engines:
            url = f"http://127.0.0.1:{worker.port}/health"
            wait_until(lambda u=url: _well(u), deadline_s=180, interval_s=0.3, what=f"{worker.name} to be healthy")  # type: ignore[misc]


def _ended(supervisor: ProcessSupervisor, handle: UnitHandle) -> None:
    """Under load SGLang may take SIGTERM for an invitation to wait for what it has; a person kills it then."""
    try:
        wait_until(lambda: not supervisor.status(handle).pids, deadline_s=TERM_S, interval_s=0.5, what=handle.unit)
    except DeadlineExceeded:
        supervisor.kill(handle)


def _well(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def measure(stack: Stack, restart: Callable[[Stack], None], clients: int, seed: int) -> Measured:
    """Do it under load, and wait until the clients are answered again."""
    with RetryingClients(stack.profile.url, clients, seed) as asking:
        wait_until(lambda: asking.answered >= FLOWING, deadline_s=BACK_WITHIN_S, what="traffic before")
        began = time.monotonic()
        restart(stack)
        done = asking.answered
        wait_until(lambda: asking.answered >= done + FLOWING, deadline_s=BACK_WITHIN_S, what="traffic after")
        seen = asking.stop()
    return Measured(seen.downtime_s(began), seen)


@contextmanager
def served(folder: Path, name: str, more: str) -> Iterator[Stack]:
    """A stack on the CPU profile."""
    stack = Stack(Dsv4(folder / f"state-{name}"), write_profile(folder, name, more=more))
    done = stack.dsv4.run("serve", "--detach", stack.profile.path)
    assert done.code == 0, done.err
    try:
        yield stack
    finally:
        stack.dsv4.run("stop", "--yes", stack.profile.path)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--clients", type=int, default=8)
    wanted = parser.parse_args()
    ways = {"co-restart": by_co_restart, "script": by_script}
    sys.stdout.write("| router | way | seconds without an answer | median | requests | errors | wrong | hung |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        for number, (router, more) in enumerate(ROUTERS.items()):
            with served(Path(folder), f"bench{number}", more) as stack:
                found: dict[str, list[Measured]] = {way: [] for way in ways}
                for run in range(wanted.runs):
                    for way, restart in ways.items():
                        found[way].append(measure(stack, restart, wanted.clients, run))
            for way, all_of in found.items():
                each = [one.downtime_s for one in all_of]
                outcomes = [outcome for one in all_of for outcome in one.seen.outcomes]
                errors = sum(outcome.fate != "answered" for outcome in outcomes)
                wrong = sum(len(one.seen.wrong) for one in all_of)
                hung = sum(len(one.seen.hung) for one in all_of)
                sys.stdout.write(
                    f"| {router} | {way} | {', '.join(f'{s:.1f}' for s in each)} | {statistics.median(each):.1f} | "
                    f"{len(outcomes)} | {errors} | {wrong} | {hung} |\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
