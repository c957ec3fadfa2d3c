"""A stack of the harness's own: the command lines of a profile, and processes that can be killed one by one.

`dsv4ctl serve` says what it would start; here that is started, because a supervisor would take a worker that was
killed on purpose for the end of the stack.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from dsv4ctl.procfs import descendants, environ, processes
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, StackProfile, write_profile
from tests.stack.faults.plan import Timers
from tests.stack.faults.prompts import make_prompt

Role = Literal["prefill", "decode", "router"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "router")

READY_WITHIN_S = 180.0
MEASURED_TOKENS = 3000
FASTEST_TOKENS_PER_S = 2500.0
"""With several requests at once it is no more than that, however fast one alone was."""

WALLCLOCK = Path(__file__).parent / "wallclock"
NAIVE = Path(__file__).parent / "naive"
# Pages that were freed are soon somebody else's: a late write into them would show.
POOL = "args.max-total-tokens = 16384"
# What does not fit into the sockets stays in prefill's pages for as long as decode is stopped.
SMALL_BUFFERS = {"UCX_TCP_SNDBUF": "64k", "UCX_TCP_RCVBUF": "64k"}

ALL = "all"
"""Every patch: without it the engine is the stock one."""

INSTEAD = "naive-watchdog"
"""Every patch, and in their place a watchdog that frees the pages of what it ends at once."""


@dataclass(frozen=True)
class Worker:
    """How a worker is started and where it answers."""

    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int

    @property
    def url(self) -> str:
        """Where it answers HTTP."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Knobs:
    """What the engines are told: a built-in profile, timers in seconds, and `without` which patches to do.

    Patches are named with commas between them; ALL is every one, and INSTEAD puts something worse in their place.
    """

    profile: str = "cpu"

    timers: Timers = field(default_factory=Timers)
    lost_decode_grace_s: float = 4.0
    without: str = ""

    @property
    def env(self) -> dict[str, str]:
        """What the engines are told."""
        told = {
            **SMALL_BUFFERS,
            "SGLANG_DSV4_LOST_DECODE_GRACE": f"{self.lost_decode_grace_s:g}",
            "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": f"{self.timers.inflight_timeout_s:g}",
            "SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT": f"{self.timers.stall_timeout_s:g}",
            "SGLANG_DSV4_ALLOW_HOLD": "1",
        }
        # A missing patch would end the engine, and it is missing on purpose here.
        disabled = ALL if self.without == INSTEAD else self.without
        less = {"SGLANG_DSV4_DISABLE_PATCHES": disabled, "SGLANG_DSV4_PATCH_POLICY": "warn"}
        return {**told, **(less if self.without else {})}

    @property
    def python_path(self) -> str:
        """Where the engines look for modules first."""
        return os.pathsep.join(map(str, [WALLCLOCK, *([NAIVE] if self.without == INSTEAD else [])]))


def planned_workers(dsv4: Dsv4, profile: StackProfile, knobs: Knobs, clock: Path) -> dict[Role, Worker]:
    """The workers of a profile as `dsv4ctl serve` would start them, with the knobs and a movable wall clock."""
    told = dsv4.run("serve", "--dry-run", "-o", "json", profile.path)
    assert told.code == 0, told.err
    found: dict[Role, Worker] = {}
    for worker in told.document["result"]["workers"]:
        role: Role = next(role for role in ROLES if worker["name"].startswith(role))
        env = dict(worker["env"])
        if role != "router":
            env |= knobs.env | {"PYTHONPATH": knobs.python_path, "DSV4_TEST_WALL_CLOCK": str(clock)}
        found[role] = Worker(role, tuple(worker["argv"]), env, worker["ports"]["http"])
    return found


@dataclass
class FaultStack:
    """Prefill, decode and router, running or not.

    `idle` is what each engine holds at rest, once that is known; `tokens_per_s` what it did for one long prompt, of
    which the bounds of all clients are reckoned: other work on the machine is not the engine's fault.
    """

    folder: Path
    profile: StackProfile
    workers: Mapping[Role, Worker]
    clock: Path
    knobs: Knobs
    running: dict[Role, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    idle: dict[Role, Mapping[str, int]] = field(default_factory=dict)
    tokens_per_s: float = 0.0

    @classmethod
    def planned(cls, folder: Path, name: str, knobs: Knobs) -> "FaultStack":
        """A stack on ports of its own, not started. Its model is made."""
        dsv4 = Dsv4(folder / "state")
        clock = folder / "wall-clock"
        clock.write_text("0")
        profile = write_profile(folder, name, extends=knobs.profile, more=POOL)
        workers = planned_workers(dsv4, profile, knobs, clock)
        argv = workers["prefill"].argv
        model = argv[argv.index("--model-path") + 1]
        variant = Path(model).name
        subprocess.run([argv[0], "-m", "serving.cpu.tiny_model", model, "--variant", variant], check=True, timeout=60)
        return cls(folder, profile, workers, clock, knobs)

    @property
    def url(self) -> str:
        """Where clients ask."""
        return self.workers["router"].url

    @property
    def bootstrap_port(self) -> int:
        """Where decode asks for a room of prefill's."""
        argv = self.workers["prefill"].argv
        return int(argv[argv.index("--disaggregation-bootstrap-port") + 1])

    def log(self, role: Role) -> Path:
        """What a role has printed since the stack was first started."""
        return self.folder / f"{role}.log"

    def start(self, role: Role) -> None:
        """Start a role; it is not ready yet."""
        worker = self.workers[role]
        scratch = Path(worker.env["TMPDIR"])
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, mode=0o700)
        with self.log(role).open("ab") as log:
            self.running[role] = subprocess.Popen(
                worker.argv, env={**os.environ, **worker.env}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, role: Role) -> None:
        """End a role as a crash would, with all its processes; stopped ones too."""
        process = self.running.pop(role)
        # Its children would end with it, each when it notices; a crash takes all at once.
        table = processes(HOST)
        for pid in {process.pid, *descendants(table, [process.pid])}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)
        shutil.rmtree(self.workers[role].env["TMPDIR"], ignore_errors=True)

    def alive(self, role: Role) -> bool:
        """Whether the main process of a role runs."""
        return role in self.running and self.running[role].poll() is None

    def scheduler(self, role: Role) -> int:
        """The pid of a role's scheduler.

        Raises:
            LookupError: it has none.
        """
        table = processes(HOST)
        for pid in sorted(descendants(table, [self.running[role].pid])):
            with suppress(OSError):
                if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes() and table[pid].alive:
                    return pid
        raise LookupError(f"{role} has no scheduler")

    def signal_scheduler(self, role: Role, number: signal.Signals) -> None:
        """Stop a scheduler or have it go on."""
        os.kill(self.scheduler(role), number)

    def step_wall_clock(self, seconds: float) -> None:
        """Set the wall clock of both engines `seconds` from the true one, at once."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{seconds:g}")
        fresh.rename(self.clock)

    def answers(self, role: Role, path: str = "/health") -> bool:
        """Whether a role answers 200 within a second or so."""
        try:
            return httpx.get(self.workers[role].url + path, timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def wait_ready(self, role: Role) -> None:
        """Wait until a role answers.

        Raises:
            RuntimeError: it ended, or did not answer in time; the end of its log.
        """

        def ready() -> bool:
            if not self.alive(role):
                raise RuntimeError(f"{role} ended while starting: {self.tail(role)}")
            return self.answers(role)

        wait_until(ready, deadline_s=READY_WITHIN_S, what=f"{role} to answer", interval_s=0.2)

    def wait_serving(self, text: str, right: str) -> None:
        """Wait until the router gives the right answer to `text`."""
        sampling = {"temperature": 0, "max_new_tokens": len(right)}

        def right_answer() -> bool:
            try:
                reply = httpx.post(f"{self.url}/generate", json={"text": text, "sampling_params": sampling}, timeout=30)
            except httpx.HTTPError:
                return False
            return reply.status_code == httpx.codes.OK and reply.json()["text"] == right

        wait_until(right_answer, deadline_s=READY_WITHIN_S, what="a right answer through the router", interval_s=0.3)

    def tail(self, role: Role, lines: int = 15) -> str:
        """The end of a role's log."""
        return "\n".join(self.log(role).read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End everything that runs."""
        for role in list(self.running):
            self.kill(role)
        # The kernel frees a killed engine's ports and memory a moment after wait() has returned.
        time.sleep(0.1)

    def environment_of(self, role: Role) -> dict[str, str]:
        """The environment that a role's main process really has."""
        return environ(HOST, self.running[role].pid)


def start_stack(folder: Path, name: str, knobs: Knobs) -> FaultStack:
    """A stack that answers right; ended again where it does not.

    Raises:
        RuntimeError: a worker did not come up.
        DeadlineExceeded: no right answer came in time.
    """
    stack = FaultStack.planned(folder, name, knobs)
    try:
        for role in ROLES:
            stack.start(role)
        for role in ROLES:
            stack.wait_ready(role)
        rng = random.Random(name)
        prompt = make_prompt(rng, 64, 8)
        stack.wait_serving(prompt.text, prompt.answer)
        prompt = make_prompt(rng, MEASURED_TOKENS, 8)
        began = time.monotonic()
        stack.wait_serving(prompt.text, prompt.answer)
        stack.tokens_per_s = min(FASTEST_TOKENS_PER_S, MEASURED_TOKENS / (time.monotonic() - began))
    except BaseException:
        stack.close()
        raise
    return stack
