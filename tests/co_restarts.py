"""Support for tests of co-restart: a stack of one's own, how it is looked at, and restarts that are cut off."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dsv4ctl.errors import DeadlineExceeded
from dsv4ctl.procfs import descendants, processes
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, Leftovers, StackProfile, leftovers


@dataclass(frozen=True)
class Stack:
    """A served stack, and dsv4ctl as a person types it for that stack."""

    dsv4: Dsv4
    profile: StackProfile
    state: Path | None = None
    """The state directory where that is not ours: a host's that is reached over SSH."""

    @property
    def folder(self) -> Path:
        """Where its state is kept."""
        return (self.state or self.dsv4.state) / "dsv4ctl" / "stacks" / self.profile.name

    @property
    def pending(self) -> dict[str, Any] | None:
        """The restart that is under way, as it is on disk."""
        try:
            body: dict[str, Any] = json.loads((self.folder / "restart.json").read_text())["body"]
        except FileNotFoundError:
            return None
        return body

    def restart(self, *args: str) -> Any:
        """A co-restart to its end, which has to succeed; its result."""
        done = self.dsv4.run("co-restart", "--yes", "-o", "json", *args, self.profile.path, timeout_s=300)
        assert done.code == 0, done.err + done.out
        return done.document["result"]

    def status(self) -> tuple[int, set[str]]:
        """Exit code and codes of the findings."""
        done = self.dsv4.run("status", "-o", "json", self.profile.path)
        return done.code, {finding["code"] for finding in done.document["findings"]}

    def record(self, worker: str) -> dict[str, Any]:
        """What the state directory says of a worker."""
        workers: list[dict[str, Any]] = json.loads((self.folder / "stack.json").read_text())["workers"]
        return next(entry for entry in workers if entry["name"] == worker)

    def scheduler(self, worker: str) -> int:
        """The pid of an engine's scheduler."""
        table = processes(HOST)
        below = descendants(table, [self.record(worker)["handle"]["pid"]])
        return next(pid for pid in below if table[pid].comm.startswith("sglang::schedul"))

    def inflight(self, since: float = 0.0) -> int:
        """How many requests prefill has inflight, as its scheduler says it at `since` (a wall clock's) or later."""
        _, _, prefill, _, _ = self.profile.ports
        load: dict[str, Any] = {}

        def said() -> bool:
            nonlocal load
            load = httpx.get(f"http://127.0.0.1:{prefill}/v1/loads", timeout=10).json()["loads"][0]
            return bool(load["timestamp"] >= since)

        wait_until(said, deadline_s=30, interval_s=0.05, what="a word of prefill's scheduler")
        return int(load["disaggregation"]["prefill_inflight_queue_reqs"])

    def answers(self) -> bool:
        """Whether a generation through the router comes back."""
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
        return httpx.post(f"{self.profile.url}/v1/completions", json=body, timeout=60).status_code == 200

    def pin(self) -> None:
        """Stop decode's scheduler while a request is inflight, with clients at work; one that stays is pinned."""
        scheduler = self.scheduler("decode-0")

        def pinned() -> bool:
            wait_until(lambda: self.inflight() > 0, deadline_s=30, interval_s=0.01, what="a request inflight")
            os.kill(scheduler, signal.SIGSTOP)
            try:
                # What prefill had sent already leaves its queue in a moment, on a busy machine in a second or two.
                wait_until(lambda: self.inflight() == 0, deadline_s=3.0, interval_s=0.1, what="an empty queue")
            except DeadlineExceeded:
                # A scheduler that was kept from the processor has taken nothing out yet.
                if self.inflight(since=time.time()) > 0:
                    return True
            os.kill(scheduler, signal.SIGCONT)
            return False

        wait_until(pinned, deadline_s=60, what="a request that is pinned")

    def left(self, shm_before: frozenset[str]) -> Leftovers:
        """What is on this machine of it."""
        return leftovers(self.profile, shm_before)

    def begun(self, step: str, *args: str) -> "subprocess.Popen[str]":
        """A co-restart that has come to the beginning of a step."""
        process = self.dsv4.start("co-restart", "--yes", "-o", "jsonl", *args, self.profile.path)
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line).get("event", {})
            if str(event.get("step", "")).startswith(step) and event.get("state") == "begin":
                return process
        raise AssertionError(process.communicate())

    def cut_at(self, step: str, *args: str, with_signal: signal.Signals = signal.SIGKILL) -> int:
        """Begin a co-restart and end dsv4ctl when it is at that step; its exit code."""
        process = self.begun(step, *args)
        process.send_signal(with_signal)
        process.communicate(timeout=120)
        return process.returncode
