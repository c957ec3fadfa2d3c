"""Support for tests with the real engine: profiles on free ports, and dsv4ctl as a person types it."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4ctl.app import app
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.procfs import Process, listeners, marked_processes, processes, shm_listing
from dsv4ctl.stack import UNIT_VARIABLE

DSV4CTL = str(Path(sys.executable).with_name("dsv4ctl"))
HOST = LocalHost()
WRITTEN: list["StackProfile"] = []
"""Every stack profile of this run of the tests."""
_RNG = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Ports that nobody holds now, outside the range from which the kernel lends."""
    found: list[int] = []
    while len(found) < count:
        port = _RNG.randrange(15_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


@dataclass(frozen=True)
class StackProfile:
    """A profile written for one test, and what is in it."""

    path: Path
    name: str
    router: int
    ports: tuple[int, ...]
    workers: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where the stack answers."""
        return f"http://127.0.0.1:{self.router}"

    @property
    def units(self) -> tuple[str, ...]:
        """The units of its workers."""
        return tuple(f"dsv4-{self.name}-{worker}" for worker in self.workers)


def write_profile(
    folder: Path,
    name: str,
    *,
    extends: str = "cpu",
    prefill: int = 1,
    decode: int = 1,
    host: str = "local",
    more: str = "",
    large_tokens: int = 1000,
) -> StackProfile:
    """A profile that extends a built-in one, on ports of its own. `more` is put in front of its tables.

    The large canary is smaller than the built-in one's, which takes a fifth of a start: not every test of a start is
    about prompts of several chunks.
    The stack's name is new in every run, so that what a run left behind cannot be taken for another's.
    """
    name = f"{name}-{os.getpid()}"
    router, metrics = free_ports(2)
    ports = [router, metrics]
    text = f'extends = "{extends}"\nname = "{name}"\n{more}\n'
    text += f'[router]\nhost = "{host}"\nport = {router}\nmetrics_port = {metrics}\n'
    text += "" if "[canary]" in more else f"[canary]\nlarge_tokens = {large_tokens}\n"
    for role, count in (("prefill", prefill), ("decode", decode)):
        for _ in range(count):
            port, bootstrap = free_ports(2)
            ports += [port, bootstrap] if role == "prefill" else [port]
            text += f'[[{role}.workers]]\nhost = "{host}"\nport = {port}\n'
            text += f"bootstrap_port = {bootstrap}\n" if role == "prefill" else ""
    path = folder / f"{name}.toml"
    path.write_text(text)
    workers = [f"prefill-{i}" for i in range(prefill)] + [f"decode-{i}" for i in range(decode)] + ["router"]
    WRITTEN.append(StackProfile(path, name, router, tuple(ports), tuple(workers)))
    return WRITTEN[-1]


def single_profile(folder: Path, name: str) -> StackProfile:
    """One server without disaggregation or router."""
    (port,) = free_ports(1)
    name = f"{name}-{os.getpid()}"
    path = folder / f"{name}.toml"
    path.write_text(f'extends = "cpu-single"\nname = "{name}"\n[[unified.workers]]\nport = {port}\n')
    WRITTEN.append(StackProfile(path, name, port, (port,), ("unified-0",)))
    return WRITTEN[-1]


def end_everything() -> list[int]:
    """Kill what failed tests of this run left behind; returns the pids."""
    units = [unit for profile in WRITTEN for unit in profile.units]
    left = marked_processes(HOST, UNIT_VARIABLE, units)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return sorted(left)


@dataclass(frozen=True)
class Result:
    """What a run of dsv4ctl said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its JSON envelope."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Dsv4:
    """dsv4ctl with a state directory of its own."""

    state: Path
    extra_env: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> list[str]:
        """How it is called."""
        return [DSV4CTL]

    @property
    def env(self) -> dict[str, str]:
        """The environment it runs in."""
        return {**os.environ, "XDG_STATE_HOME": str(self.state), "COLUMNS": "120", **dict(self.extra_env)}

    def run(self, *args: str | Path, timeout_s: float = 180, stdin: str = "") -> Result:
        """Run it to its end."""
        done = subprocess.run(
            [DSV4CTL, *map(str, args)], env=self.env, input=stdin, capture_output=True, text=True, timeout=timeout_s
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def invoke(self, *args: str | Path) -> Result:
        """Run it within this process, through Typer's own runner."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(self.state))
            for name, value in self.extra_env:
                patch.setenv(name, value)
            done = CliRunner().invoke(app, [str(arg) for arg in args])
        return Result(done.exit_code, done.stdout, done.stderr)

    def start(self, *args: str | Path) -> "subprocess.Popen[str]":
        """Start it in the foreground, as a terminal would; the caller reads its stderr."""
        return subprocess.Popen(
            [DSV4CTL, *map(str, args)],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@dataclass(frozen=True)
class Leftovers:
    """What of a stack is still on this machine: pids by unit, ports that are held, files in /dev/shm.

    These are new, and nobody uses them: another stack may run beside it.
    """

    pids: dict[int, str]
    ports: tuple[int, ...]
    shm: frozenset[str]

    @property
    def none(self) -> bool:
        """Whether nothing is."""
        return not self.pids and not self.ports and not self.shm


def shm_files() -> frozenset[str]:
    """The files in /dev/shm now."""
    return frozenset(file.path for file in shm_listing(HOST))


def leftovers(profile: StackProfile, shm_before: frozenset[str]) -> Leftovers:
    """Look for anything of a stack, by other means than the ones that dsv4ctl uses to end it."""
    held = {listener.port for listener in listeners(HOST)}
    return Leftovers(
        pids=marked_processes(HOST, UNIT_VARIABLE, profile.units),
        ports=tuple(port for port in profile.ports if port in held),
        shm=frozenset(file.path for file in shm_listing(HOST) if not file.in_use) - shm_before,
    )


def process_of(pid: int) -> Process | None:
    """A process that is alive now."""
    found = processes(HOST).get(pid)
    return found if found is not None and found.alive else None


def assert_gone(profile: StackProfile, shm_before: frozenset[str], *, but: Sequence[str] = ()) -> None:
    """Nothing of the stack is left, `but` files in /dev/shm that belong to something else."""
    found = leftovers(profile, shm_before | frozenset(but))
    assert found.none, found
