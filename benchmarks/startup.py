"""How long a start takes: the installation, the whole stack to its first right answer, one role alone.

    python -m benchmarks.startup [--install] [--runs N]

Each number is wall-clock time on this machine at this moment; the load average that stands beside it says how much of
the machine was someone else's.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from dsv4ctl.waiting import wait_until
from serving.cpu.tiny_model import VARIANTS, expected_answer, write_model

ROOT = Path(__file__).parent.parent
START_DEADLINE_S = 180
BARS_S = {"install": 180.0, "stack": 30.0, "prefill": 30.0, "decode": 30.0, "router": 30.0}
ROLES = ("prefill", "decode", "router")
MODEL: dict[str, object] = {"served-model-name": "tiny", "dtype": "float32", "context-length": 16384}
ENGINE: dict[str, object] = {"device": "cpu", "attention-backend": "torch_native", "host": "127.0.0.1"}
MEMORY: dict[str, object] = {"mem-fraction-static": 0.05, "max-total-tokens": 32768}
FLAGS = ["--enable-metrics", "--disable-overlap-schedule", "--sleep-on-idle"]
TRANSFER: dict[str, object] = {"disaggregation-transfer-backend": "nixl"}
ROUTER: dict[str, object] = {
    "host": "127.0.0.1",
    "log-level": "warn",
    "cb-timeout-duration-secs": 5,
    "health-check-interval-secs": 2,
    "health-success-threshold": 1,
}
PROMPT = b"The code word is: PELICAN. Nothing else matters here. The code word is:"


def options_of(*groups: dict[str, object]) -> list[str]:
    """Command line options: `--name value` for each entry."""
    return [word for group in groups for name, value in group.items() for word in (f"--{name}", str(value))]


def free_port() -> int:
    """A port that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Stack:
    """One prefill worker, one decode worker and a router, each a process tree of its own."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {n: free_port() for n in (*ROLES, "bootstrap", "metrics")})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, role: str) -> list[str]:
        """The command line of a role."""
        port = ["--port", str(self.ports[role])]
        bootstrap = str(self.ports["bootstrap"])
        engine = [sys.executable, "-m", "serving.cpu.engine", "--model-path", str(self.folder / "model")]
        engine += [*options_of(MODEL, ENGINE, MEMORY, TRANSFER), *FLAGS]
        mode = ["--disaggregation-mode", role]
        match role:
            case "prefill":
                return [*engine, *port, *mode, "--disaggregation-bootstrap-port", bootstrap]
            case "decode":
                return [*engine, *port, *mode, "--disaggregation-decode-retraction-backup", "cpu_tensor"]
        prefill, decode = (f"http://127.0.0.1:{self.ports[worker]}" for worker in ("prefill", "decode"))
        workers = ["--pd-disaggregation", "--prefill", prefill, bootstrap, "--decode", decode]
        metrics = ["--prometheus-port", str(self.ports["metrics"])]
        return [sys.executable, "-m", "serving.cpu.router", *port, *workers, *metrics, *options_of(ROUTER)]

    def start(self, role: str) -> None:
        """Start a role; its log is in the folder."""
        scratch = self.folder / f"tmp-{role}"
        scratch.mkdir(exist_ok=True)
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                self.command(role),
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(scratch)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, role: str) -> None:
        """End a role as a crash would, with all its processes."""
        process = self.processes.pop(role)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for_answer(self) -> None:
        """Wait until the router gives the right answer to a prompt."""
        url = f"http://127.0.0.1:{self.ports['router']}/generate"
        sampling = {"temperature": 0, "max_new_tokens": 9}
        right = expected_answer(PROMPT, 9).decode()

        def answered() -> bool:
            for role, process in self.processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{role} ended with {process.returncode}: {self.folder / role}.log")
            try:
                reply = httpx.post(url, json={"text": PROMPT.decode(), "sampling_params": sampling}, timeout=2)
            except httpx.HTTPError:
                return False
            return reply.status_code == httpx.codes.OK and reply.json()["text"] == right

        wait_until(answered, deadline_s=START_DEADLINE_S, what="a right answer through the router", interval_s=0.2)


def timed_start(stack: Stack, *roles: str) -> float:
    """Seconds from starting `roles` at once to the next right answer."""
    began = time.monotonic()
    for role in roles:
        stack.start(role)
    stack.wait_for_answer()
    return time.monotonic() - began


def measure_starts() -> Iterator[tuple[str, float]]:
    """Start the stack, then kill and start each role alone."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        stack = Stack(Path(folder))
        write_model(stack.folder / "model", VARIANTS["tiny"])
        try:
            yield "stack", timed_start(stack, *ROLES)
            for role in ROLES:
                stack.kill(role)
                yield role, timed_start(stack, role)
        finally:
            for role in list(stack.processes):
                stack.kill(role)


def measure_install() -> Iterator[tuple[str, float]]:
    """Make a fresh environment as `make` does, and say how large it is."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps", "--no-compile"]
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        subprocess.run([*pip, "-r", ROOT / "requirements" / "serving-cpu.txt"], check=True)
        compiling = [str(python), "-m", "compileall", "-q", "-j", "0", str(python.parent.parent / "lib")]
        subprocess.run(compiling, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield "install", time.monotonic() - began
        usage = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True)
        yield "size of .venv in MB", float(usage.stdout.split()[0])


def main(arguments: list[str]) -> int:
    """Measure, print a table; 0 if every bar was kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--install", action="store_true", help="measure an installation as well (uses the network)")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    if shutil.disk_usage(tempfile.gettempdir()).free < 4 << 30 and options.install:
        parser.error(f"an installation needs 4 GB in {tempfile.gettempdir()}")
    figures: dict[str, list[float]] = {}
    if options.install:
        figures = {name: [value] for name, value in measure_install()}
    for _ in range(options.runs):
        for name, value in measure_starts():
            figures.setdefault(name, []).append(value)
    sys.stdout.write(f"{'':24}{'median':>9}{'worst':>9}{'bar':>9}   load {os.getloadavg()[0]:.1f}\n")
    for name, values in figures.items():
        bar = BARS_S.get(name)
        middle, worst = statistics.median(values), max(values)
        sys.stdout.write(f"{name:24}{middle:9.1f}{worst:9.1f}{bar if bar is not None else '':>9}\n")
    return int(any(max(values) > BARS_S.get(name, float("inf")) for name, values in figures.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
