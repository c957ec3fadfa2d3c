"""watch-inflight against real faults of a stock and of a patched stack, and against steady load for minutes.

    python -m pytest tests/soak

What a verdict is compared with is the engine's own live count, asked by these tests themselves.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from dsv4ctl.inflight.judge import Limits
from dsv4ctl.waiting import wait_until
from tests.engine import Dsv4
from tests.sshd import SshNet
from tests.stack.faults.links import links_between, moved_bytes
from tests.stack.faults.plan import Timers
from tests.stack.faults.prompts import make_prompt
from tests.stack.faults.stack import ALL, FaultStack, Knobs, start_stack
from tests.stock_view import stock_view

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1500)]

INTERVAL_S = 1.0
PIN_S = Limits().pin_after_s
NOTICED_S = 2 * INTERVAL_S + 1.0
"""Two intervals, and what the start of the command and a look take on a busy machine."""

STEADY_S = float(os.environ.get("DSV4_TEST_STEADY_S", "600"))
LEASES_S = (1, 1, 2, 2, 3, 3)
MEAN_LEASE_S = sum(LEASES_S) / len(LEASES_S)


@dataclass
class Watcher:
    """A watch that runs beside the test. `seen` are (when on the monotonic clock, worker, verdict) of each look."""

    process: "subprocess.Popen[str]"
    seen: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    envelope: dict[str, Any] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what it prints until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            document = json.loads(line)
            if "event" not in document:
                self.envelope = document
                continue
            self.seen += [(time.monotonic(), verdict) for verdict in document["event"]["verdicts"]]

    @property
    def states(self) -> list[str]:
        """What was said, look by look."""
        return [verdict["state"] for _, verdict in self.seen]

    def first(self, state: str, since_s: float = 0.0) -> float | None:
        """When `state` was first said after `since_s`."""
        return next((at_s for at_s, verdict in self.seen if at_s >= since_s and verdict["state"] == state), None)


@contextmanager
def watching(dsv4: Dsv4, profile: Path, *more: str) -> Iterator[Watcher]:
    """A watch while the block runs, ended by Ctrl-C where it has not ended itself; its report is there afterwards."""
    process = dsv4.start("watch-inflight", profile, "--interval", str(INTERVAL_S), "-o", "jsonl", *more)
    watcher = Watcher(process)
    reader = threading.Thread(target=watcher.read)
    reader.start()
    try:
        wait_until(lambda: watcher.seen, deadline_s=30, what="a first look")
        yield watcher
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        reader.join(10)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def dsv4(tmp_path_factory: pytest.TempPathFactory) -> Dsv4:
    return Dsv4(tmp_path_factory.mktemp("watcher"))


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultStack]:
    """SGLang as it is."""
    started = start_stack(tmp_path_factory.mktemp("stock"), "watch-stock", Knobs(without=ALL))
    yield started
    started.close()


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultStack]:
    """With all patches, and a watchdog that lets things pass for a minute."""
    knobs = Knobs(timers=Timers(inflight_timeout_s=60.0, stall_timeout_s=60.0))
    started = start_stack(tmp_path_factory.mktemp("patched"), "watch-patched", knobs)
    yield started
    started.close()


def inflight(stack: FaultStack) -> int:
    """How many requests prefill has inflight, now, by its own live count."""
    loads = httpx.get(f"{stack.workers['prefill'].url}/v1/loads?include=disagg", timeout=10).json()["loads"]
    return sum(int(load["disaggregation"]["prefill_inflight_queue_reqs"]) for load in loads)


def gauge(url: str) -> float:
    """The greatest that SGLang's own gauge of the inflight queue says now."""
    name = "sglang:num_prefill_inflight_queue_reqs"
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    return max((float(line.split()[-1]) for line in lines if line.startswith(name)), default=0.0)


def view_profile(stack: FaultStack, folder: Path, port: int, **replaced: str) -> Path:
    """The profile of a stack whose prefill is looked at through another port; `replaced` words of it by others."""
    text = stack.profile.path.read_text()
    _, _, prefill, *_ = stack.profile.ports
    assert text.count(f"port = {prefill}\n") == 1
    text = text.replace(f"port = {prefill}\n", f"port = {port}\n")
    for word, other in replaced.items():
        text = text.replace(word, other)
    path = folder / f"view-{port}.toml"
    path.write_text(text)
    return path


def freeze_in_transfer(stack: FaultStack, pool: ThreadPoolExecutor, seed: str) -> float:
    """Stop decode's scheduler while KV moves, for a request that then stays inflight; when that was."""
    rng = random.Random(seed)
    schedulers = stack.scheduler("prefill"), stack.scheduler("decode")
    for _ in range(6):
        pool.submit(ask, stack, rng, 4000)
        links = links_between(*schedulers)
        before = moved_bytes(links)
        deadline = time.monotonic() + 10
        while moved_bytes(links) - before < 20_000 and time.monotonic() < deadline:
            time.sleep(0.002)
        os.kill(schedulers[1], signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(1.0)
        if inflight(stack):
            return stopped
        # Its last bytes were in the sockets already: such a request is over for prefill.
        os.kill(schedulers[1], signal.SIGCONT)
        wait_until(lambda: inflight(stack) == 0, deadline_s=20, what="an empty queue")
    raise AssertionError("no blow hit a transfer")


def ask(stack: FaultStack, rng: random.Random, length: int) -> None:
    """One request, whatever becomes of it."""
    prompt = make_prompt(rng, length, 8)
    body = {"text": prompt.text, "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    try:
        httpx.post(f"{stack.url}/generate", json=body, timeout=60)
    except httpx.HTTPError:
        return


def test_a_stock_engine_of_which_only_the_gauge_is_seen(dsv4: Dsv4, stock: FaultStack, tmp_path: Path) -> None:
    url = stock.workers["prefill"].url
    with ThreadPoolExecutor() as pool:
        # Prompts that decode has asked for already are computed while it stands still, and the last batch of them is
        # the last time that the gauge is written.
        for number in range(3):
            pool.submit(ask, stock, random.Random(f"asked for {number}"), 6000)
        freeze_in_transfer(stock, pool, "a frozen gauge")
        try:
            wait_until(lambda: gauge(url) >= 1, deadline_s=20, what="a gauge above 0")
            with stock_view(url, loads=False) as port:
                profile = view_profile(stock, tmp_path, port)
                seen = dsv4.run("watch-inflight", profile, "--duration", "40", "-o", "json")
        finally:
            stock.signal_scheduler("decode", signal.SIGCONT)
    assert seen.code == 5, seen.err
    found = seen.document["result"]
    assert (found["sources"], found["pins"], found["fires"]) == (["gauge"], [], [])
    assert "may be frozen" in found["doubts"][0]["what"]
    wait_until(lambda: inflight(stock) == 0, deadline_s=60, what="an empty queue")
    live = dsv4.run("watch-inflight", stock.profile.path, "--count", "6", "-o", "json")
    assert (live.code, live.document["result"]["sources"]) == (0, ["loads"]), live.err


def test_a_stock_engine_whose_decode_stands_still(dsv4: Dsv4, stock: FaultStack) -> None:
    with ThreadPoolExecutor() as pool, watching(dsv4, stock.profile.path) as watcher:
        flowing = pool.submit(ask, stock, random.Random("flow"), 3000)
        flowing.result()
        stopped = freeze_in_transfer(stock, pool, "stands still")
        try:
            wait_until(lambda: watcher.first("pinned"), deadline_s=PIN_S + 10, what="the pin to be seen")
            said = watcher.first("pinned")
            assert said is not None
            assert PIN_S - 1.0 <= said - stopped <= PIN_S + NOTICED_S
            # Minutes later too: the gauge is frozen meanwhile, and the count is not.
            time.sleep(10)
            assert watcher.states[-1] == "pinned"
        finally:
            stock.signal_scheduler("decode", signal.SIGCONT)
        wait_until(lambda: inflight(stock) == 0, deadline_s=30, what="the transfer to go on")
        gone = time.monotonic()
        wait_until(lambda: watcher.seen[-1][0] > gone + 1, deadline_s=10, what="a later look")
        assert watcher.states[-1] in ("idle", "flowing")
    assert watcher.process.returncode == 130
    assert watcher.envelope["result"]["pins"]


def test_a_stock_engine_whose_decode_was_killed(dsv4: Dsv4, stock: FaultStack) -> None:
    with ThreadPoolExecutor() as pool, watching(dsv4, stock.profile.path) as watcher:
        stopped = freeze_in_transfer(stock, pool, "killed")
        stock.kill("decode")
        stock.start("decode")
        stock.wait_ready("decode")
        truth: list[tuple[float, int]] = []
        while time.monotonic() < stopped + PIN_S + 8:
            truth.append((time.monotonic(), inflight(stock)))
            time.sleep(0.5)
    stayed = all(count for _, count in truth)
    # Whether SGLang notices the loss hangs on what was under way; the verdict is to say what is.
    assert ("pinned" in watcher.states) == stayed, (truth[-1], watcher.states[-1])
    if not stayed:
        assert watcher.states[-1] in ("idle", "flowing")


def test_an_engine_that_is_restarted_under_the_watcher(dsv4: Dsv4, patched: FaultStack) -> None:
    with watching(dsv4, patched.profile.path) as watcher:
        patched.kill("prefill")
        killed = time.monotonic()
        wait_until(lambda: watcher.first("unreachable"), deadline_s=NOTICED_S + 5, what="unreachable")
        patched.start("prefill")
        patched.wait_ready("prefill")
        up = time.monotonic()
        wait_until(lambda: watcher.first("idle", up), deadline_s=10, what="a look at the new engine")
    said = watcher.first("unreachable")
    assert said is not None
    assert said - killed <= NOTICED_S
    assert not {"pinned", "fired"} & set(watcher.states)


def test_ssh_cut_and_back(patched: FaultStack, net: SshNet, tmp_path: Path) -> None:
    far = Dsv4(tmp_path / "state", (("DSV4CTL_SSH_CONFIG", str(net.config)),))
    _, _, prefill, *_ = patched.profile.ports
    profile = view_profile(patched, tmp_path, prefill, local="box")
    where = f'engine.python = "{sys.executable}"\nhosts.box.ssh = "via-hop"\n'
    profile.write_text(profile.read_text().replace("\n[router]", f"\n{where}[router]", 1))
    sshd = net.target
    with watching(far, profile) as watcher:
        sshd.cut()
        wait_until(lambda: len(watcher.seen) > 8, deadline_s=30, what="looks after the cut")
        assert watcher.states[-1] == "idle"
        sshd.stop()
        stopped = time.monotonic()
        try:
            wait_until(lambda: watcher.first("unreachable", stopped), deadline_s=60, what="unreachable")
            time.sleep(3)
        finally:
            sshd.start()
        back = time.monotonic()
        wait_until(lambda: watcher.first("idle", back), deadline_s=60, what="a look after it came back")
    assert set(watcher.states) <= {"idle", "unreachable"}
    assert watcher.envelope["result"]["failed"] >= 1


async def steady(stack: FaultStack, occupancy: float, seconds: float) -> list[int]:
    """Canaries that are held for 1 to 3 s, as a Poisson stream with this mean occupancy; the counts meanwhile."""
    rng = random.Random(f"steady {occupancy}")
    ended = time.monotonic() + seconds
    counts: list[int] = []
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:

        async def one(number: int) -> None:
            rid = f"dsv4-hold-{rng.choice(LEASES_S)}-steady-{occupancy}-{number}x"
            body = {"text": f"a canary {number} of many " * 4, "rid": rid, "sampling_params": {"max_new_tokens": 2}}
            await client.post(f"{stack.url}/generate", json=body)

        async def count() -> None:
            while time.monotonic() < ended:
                answer = await client.get(f"{stack.workers['prefill'].url}/v1/loads?include=disagg")
                counts.append(answer.json()["loads"][0]["disaggregation"]["prefill_inflight_queue_reqs"])
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(count())
            number = 0
            while time.monotonic() < ended:
                group.create_task(one(number))
                number += 1
                await asyncio.sleep(rng.expovariate(occupancy / MEAN_LEASE_S))
    return counts


@pytest.mark.parametrize("occupancy", [0.2, 1.0, 5.0])
def test_steady_load_is_never_called_pinned(dsv4: Dsv4, patched: FaultStack, tmp_path: Path, occupancy: float) -> None:
    with (
        stock_view(patched.workers["prefill"].url) as port,
        watching(dsv4, patched.profile.path) as by_age,
        watching(dsv4, view_profile(patched, tmp_path, port)) as by_count,
    ):
        counts = asyncio.run(steady(patched, occupancy, STEADY_S))
    mean = sum(counts) / len(counts)
    for name, watcher in (("by age", by_age), ("by count", by_count)):
        said = {state: watcher.states.count(state) for state in set(watcher.states)}
        print(f"occupancy {occupancy:g} (seen {mean:.2f}), {STEADY_S:g} s, {name}: {said}")  # noqa: T201
        assert "pinned" not in said, (name, said)
        assert "flowing" in said
    assert by_age.envelope["result"]["sources"] == ["dsv4"]
    assert by_count.envelope["result"]["sources"] == ["loads"]
    assert mean == pytest.approx(occupancy, rel=0.35)
