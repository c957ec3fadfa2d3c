"""dsv4ctl is killed at every step of a verification, locally and over SSH: the engine returns by itself."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest

from dsv4ctl.procfs import descendants, processes
from dsv4ctl.tuning.verify_plan import Proof
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, StackProfile, write_profile
from tests.held import Pair
from tests.sshd import Sshd, SshNet

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SHORT_S = 5.0
LEASE_S = Proof((), "local", SHORT_S, changes=True).lease_s
STEPS = ("shorten:prefill-0", "enters", "fires", "answer", "clean", "told:prefill-0", "restore:prefill-0")
HOLD = "[env]\nSGLANG_DSV4_ALLOW_HOLD = 1"


@pytest.fixture(scope="module")
def dsv4(tmp_path_factory: pytest.TempPathFactory) -> Dsv4:
    return Dsv4(tmp_path_factory.mktemp("verified"))


@pytest.fixture(scope="module")
def stack(dsv4: Dsv4, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProfile]:
    profile = write_profile(tmp_path_factory.mktemp("verified"), "verified", more=HOLD)
    assert dsv4.invoke("serve", "--detach", profile.path).code == 0
    yield profile
    assert dsv4.invoke("stop", "--yes", profile.path).code == 0


@pytest.fixture(scope="module")
def remote(net: SshNet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dsv4, StackProfile, Sshd]]:
    folder = tmp_path_factory.mktemp("remote")
    mine = Dsv4(folder / "state", (("DSV4CTL_SSH_CONFIG", str(net.config)),))
    more = f'engine.python = "{sys.executable}"\nhosts.box.ssh = "via-hop"\n{HOLD}'
    profile = write_profile(folder, "verified-ssh", host="box", more=more)
    assert mine.invoke("serve", "--detach", profile.path).code == 0
    yield mine, profile, net.target
    assert mine.invoke("stop", "--yes", profile.path).code == 0


def begun(dsv4: Dsv4, profile: StackProfile, step: str) -> "Popen[str]":
    """A verification that has come to the beginning of a step."""
    process = dsv4.start(
        *("tune-timeout", profile.path, "--verify", "--verify-with", f"{SHORT_S:g}", "--yes", "-o", "jsonl")
    )
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line).get("event", {})
        if (event.get("step"), event.get("state")) == (step, "begin"):
            return process
    raise AssertionError(process.communicate())


def comes_back(profile: StackProfile, before_s: float, within_s: float) -> None:
    """The engine has what it had, without a lease, and nothing that is held."""
    pair = Pair.of(profile)

    def is_back() -> bool:
        figures = pair.figures(pair.prefill)
        return bool((figures["inflight_timeout_s"], figures["inflight_lease_left_s"]) == (before_s, 0))

    wait_until(is_back, deadline_s=within_s, interval_s=0.5, what=f"{before_s:g} s to be in force again")
    wait_until(
        lambda: pair.figures(pair.prefill)["inflight"] == 0, deadline_s=60, interval_s=0.5, what="an empty queue"
    )


@pytest.mark.parametrize("step", STEPS)
def test_kill_9(dsv4: Dsv4, stack: StackProfile, step: str) -> None:
    pair = Pair.of(stack)
    before_s = pair.figures(pair.prefill)["inflight_timeout_s"]
    process = begun(dsv4, stack, step)
    process.kill()
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    comes_back(stack, before_s, LEASE_S)
    assert dsv4.run("status", stack.path).code == 0


@pytest.mark.parametrize("worker", ["router", "decode-0"])
def test_a_canary_that_its_path_ends_is_no_proof_of_anything(dsv4: Dsv4, tmp_path: Path, worker: str) -> None:
    profile = write_profile(tmp_path, "verified-path", more=HOLD)
    assert dsv4.invoke("serve", "--detach", profile.path).code == 0
    pair = Pair.of(profile)
    before_s = pair.figures(pair.prefill)["inflight_timeout_s"]
    records = json.loads((dsv4.state / "dsv4ctl/stacks" / profile.name / "stack.json").read_text())["workers"]
    leader = next(record["handle"]["pid"] for record in records if record["name"] == worker)
    process = begun(dsv4, profile, "fires")
    for pid in (leader, *descendants(processes(HOST), [leader])):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert "and not by the watchdog" in said
    comes_back(profile, before_s, 5.0)
    assert dsv4.invoke("stop", "--yes", profile.path).code == 0


def test_over_ssh(remote: tuple[Dsv4, StackProfile, Sshd]) -> None:
    mine, profile, _ = remote
    done = mine.run(
        *("tune-timeout", profile.path, "--verify", "--verify-with", f"{SHORT_S:g}", "--yes", "-o", "json"),
        timeout_s=120,
    )
    assert done.code == 0, done.err
    assert "prefill-0 on box fires" in done.document["result"]["proven"]


def test_with_the_connection_cut_it_is_put_back_at_once(remote: tuple[Dsv4, StackProfile, Sshd]) -> None:
    mine, profile, sshd = remote
    pair = Pair.of(profile)
    before_s = pair.figures(pair.prefill)["inflight_timeout_s"]
    process = begun(mine, profile, "fires")
    sshd.cut()
    _, said = process.communicate(timeout=120)
    assert process.returncode in {4, 7}, said
    assert f"prefill-0 on box has {before_s:g} s again, read back" in said
    comes_back(profile, before_s, 5.0)


@pytest.mark.parametrize("step", ["enters", "fires"])
def test_with_the_host_out_of_reach_the_lease_ends_it(remote: tuple[Dsv4, StackProfile, Sshd], step: str) -> None:
    mine, profile, sshd = remote
    pair = Pair.of(profile)
    before_s = pair.figures(pair.prefill)["inflight_timeout_s"]
    process = begun(mine, profile, step)
    sshd.stop()
    try:
        _, said = process.communicate(timeout=300)
        assert process.returncode in {4, 7}, said
        assert "its lease does that" in said
        comes_back(profile, before_s, LEASE_S)
    finally:
        sshd.start()
