"""What a look at the inflight queue costs over SSH: watch-inflight against the shell loop that it replaces, in one run.

    python -m benchmarks.sampling [--looks N] [--seconds S]

A stack is started on this machine, and a real sshd before it. Then, one after the other: the loop of `curl` and `grep`
within one ssh, the same with an ssh for each sample, and looks of watch-inflight. For each: the time of a sample, and
what it costs the processor of the host, in the engine and in what ssh started there. At the end watch-inflight looks
ten times a second for a minute: how many looks were lost or had no answer.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.inflight.collect import PrefillLook
from dsv4ctl.inflight.pages import Pages
from dsv4ctl.inflight.watching import Pace, watch
from dsv4ctl.procfs import descendants, processes
from tests.engine import HOST, Dsv4, StackProfile, write_profile
from tests.sshd import SshNet, ssh_net

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GREP = "curl -s http://127.0.0.1:{port}/metrics | grep num_prefill_inflight_queue_reqs"
INTERVAL_S = 0.1


@dataclass(frozen=True)
class Cost:
    """Of each sample: how long it took in seconds; and the processor time on the host of all together."""

    name: str
    took_s: tuple[float, ...]
    cpu_s: float

    @property
    def row(self) -> str:
        """As a row of the table."""
        took = sorted(self.took_s)
        p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
        median = statistics.median(took)
        cpu = self.cpu_s / len(took)
        return f"| {self.name} | {len(took)} | {median * 1000:.1f} ms | {p99 * 1000:.1f} ms | {cpu * 1000:.1f} ms |"


def cpu_s(roots: list[int]) -> float:
    """User and system time of these processes and of all below them, with that of children that were waited for."""
    total = 0
    for pid in {*roots, *descendants(processes(HOST), roots)}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, fields[11:15]))
    return total / TICKS_PER_S


@dataclass(frozen=True)
class Bench:
    """A running stack, and the way to it."""

    port: int
    net: SshNet
    roots: list[int]

    def measure(self, name: str, samples: Callable[[], Iterator[float]]) -> Cost:
        """Take samples, each of which says how long it took."""
        before = cpu_s(self.roots)
        took = tuple(samples())
        return Cost(name, took, cpu_s(self.roots) - before)

    def ssh(self, script: str) -> list[str]:
        """The person's own ssh."""
        return ["ssh", "-F", str(self.net.config), "-o", "BatchMode=yes", "direct", script]

    def loop(self, looks: int) -> Iterator[float]:
        """The loop within one ssh; a line of its output ends a sample."""
        script = f"for i in $(seq {looks}); do {GREP.format(port=self.port)} | tail -1; done"
        with subprocess.Popen(self.ssh(script), stdout=subprocess.PIPE, text=True) as loop:
            assert loop.stdout is not None
            last_s = time.monotonic()
            for line in loop.stdout:
                now_s = time.monotonic()
                assert "inflight" in line, line
                yield now_s - last_s
                last_s = now_s

    def one_ssh_each(self, looks: int) -> Iterator[float]:
        """An ssh for each sample."""
        for _ in range(looks):
            began_s = time.monotonic()
            subprocess.run(self.ssh(GREP.format(port=self.port)), check=True, stdout=subprocess.DEVNULL, timeout=60)
            yield time.monotonic() - began_s

    def ours(self, look: PrefillLook, looks: int) -> Iterator[float]:
        """Looks of watch-inflight."""
        for _ in range(looks):
            began_s = time.monotonic()
            assert not look.look().failure
            yield time.monotonic() - began_s


@contextmanager
def running_stack(folder: Path) -> Iterator[tuple[StackProfile, int]]:
    """A stack of the cpu profile, with the pid of its prefill."""
    dsv4 = Dsv4(folder / "state")
    profile = write_profile(folder, "sampling")
    served = dsv4.run("serve", "--detach", profile.path)
    if served.code:
        raise SystemExit(served.err)
    try:
        workers = dsv4.run("status", profile.path, "-o", "json").document["result"]["workers"]
        yield profile, next(int(worker["pid"]) for worker in workers if worker["role"] == "prefill")
    finally:
        dsv4.run("stop", "--yes", profile.path)


def main(arguments: list[str]) -> int:
    """Print the table; 0 if no look was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--looks", type=int, default=20, help="of each shell loop; ten times as many of ours")
    parser.add_argument("--seconds", type=float, default=60.0, help="of ten looks a second")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sampling") as directory:
        folder = Path(directory)
        with running_stack(folder) as (profile, pid), ssh_net(folder / "ssh") as net:
            assert net.target.process is not None
            os.environ["DSV4CTL_SSH_CONFIG"] = str(net.config)
            bench = Bench(profile.ports[2], net, [pid, net.target.process.pid])
            host = SshHost("direct")
            with closing(Pages(f"http://127.0.0.1:{bench.port}", host.transport())) as pages:
                look = PrefillLook("prefill-0", pages, time.monotonic())
                look.look()
                costs = [
                    bench.measure("the loop within one ssh", lambda: bench.loop(options.looks)),
                    bench.measure("an ssh for each sample", lambda: bench.one_ssh_each(options.looks)),
                    bench.measure("watch-inflight", lambda: bench.ours(look, 10 * options.looks)),
                ]
                pace = Pace(INTERVAL_S)
                taken = [
                    sample
                    for samples in watch([look], [], pace, sleep=time.sleep, duration_s=options.seconds)
                    for sample in samples
                ]
            host.close()
    sys.stdout.write("| way | samples | median | 99 % within | processor of the host, each |\n|---|---|---|---|---|\n")
    sys.stdout.write("".join(f"{cost.row}\n" for cost in costs))
    ratio = statistics.median(costs[0].took_s) / statistics.median(costs[2].took_s)
    failed = sum(bool(sample.failure) for sample in taken)
    sys.stdout.write(
        f"\nA look is {ratio:.0f} times as fast as in the loop. At {1 / INTERVAL_S:g} Hz for {options.seconds:g} s: "
        f"{len(taken)} looks, {pace.lost} lost, {failed} without an answer.\n"
    )
    return int(bool(pace.lost or failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
