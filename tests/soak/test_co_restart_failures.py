"""Every way that was thought of to break a co-restart, on the real stack: the state it leaves, and the run after it.

With DSV4_TEST_TABLE=FILE the table of docs/reliability.md is written there.
"""

import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from dsv4ctl.procfs import processes
from dsv4ctl.waiting import wait_until
from tests.co_restarts import Stack
from tests.engine import HOST, Dsv4, assert_gone, shm_files, write_profile
from tests.retrying import RetryingClients
from tests.sshd import Sshd, SshNet
from tests.stack.test_bad_input import as_root, fill, full_disk

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

IN_A_ROW = 20
CLIENTS = 8


@dataclass(frozen=True)
class Row:
    """One failure: what was done, when, how dsv4ctl ended, what `status` says, how the second run ended."""

    what: str
    at: str
    code: int
    status: str
    second: str


ROWS: list[Row] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Written at the end, where a file is named."""
    yield
    if path := os.environ.get("DSV4_TEST_TABLE"):
        head = "| what | at | exit | `status` says | the run after it |\n|---|---|---|---|---|\n"
        rows = "".join(f"| {row.what} | {row.at} | {row.code} | {row.status} | {row.second} |\n" for row in ROWS)
        Path(path).write_text(head + rows)


def served(folder: Path, dsv4: Dsv4, name: str) -> Stack:
    stack = Stack(dsv4, write_profile(folder, name))
    done = stack.dsv4.run("serve", "--detach", stack.profile.path)
    assert done.code == 0, done.err
    return stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    before = shm_files()
    folder = tmp_path_factory.mktemp("failures")
    one = served(folder, Dsv4(folder / "state"), "crf")
    yield one
    stopped = one.dsv4.run("stop", "--yes", one.profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(one.profile, before)


def note(stack: Stack, what: str, at: str, code: int, *args: str) -> None:
    """Add the row: look at the state, run it again, and look again."""
    status, findings = stack.status()
    assert status in {0, 1, 4}
    said = ", ".join(sorted(findings)) or "healthy"
    if stack.pending is not None:
        assert "CO_RESTART_UNFINISHED" in findings
        said += f" ({stack.pending['phase']})"
    result = stack.restart(*args)
    already = sum(step["state"] == "already" for step in result["steps"])
    assert stack.status() == (0, set())
    assert stack.pending is None
    assert stack.answers()
    ROWS.append(Row(what, at, code, said, f"{result['state']}; already so: {already} steps"))


STEPS = (
    *("evidence", "cordon", "drain", "abort", "note", "end", "ended", "kill", "gone", "start:prefill-0"),
    *("start:decode-0", "await:prefill-0", "pair", "idle", "readback:decode-0", "patches:decode-0", "uncordon"),
    "traffic",
)


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_of_dsv4ctl(stack: Stack, step: str) -> None:
    code = stack.cut_at(step)
    assert code == -signal.SIGKILL
    note(stack, "kill -9 of dsv4ctl", step, code)


@pytest.mark.parametrize("step", ["evidence", "drain", "ended", "await:prefill-0", "pair"])
def test_ctrl_c(stack: Stack, step: str) -> None:
    code = stack.cut_at(step, with_signal=signal.SIGINT)
    assert code == 130
    note(stack, "Ctrl-C", step, code)


def test_ctrl_c_while_it_drains_lets_traffic_in_again(stack: Stack) -> None:
    old = stack.record("decode-0")["handle"]["pid"]
    body = {"model": "tiny", "prompt": "never ends ", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{stack.profile.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_bytes())
        code = stack.cut_at("drain", "--drain", "60", with_signal=signal.SIGINT)
        assert code == 130
        assert stack.answers()
    assert stack.record("decode-0")["handle"]["pid"] == old
    assert stack.pending is None
    note(stack, "Ctrl-C, a request under way", "drain", code)


def test_a_second_run_that_is_interrupted_too(stack: Stack) -> None:
    assert stack.cut_at("start:prefill-0") == -signal.SIGKILL
    code = stack.cut_at("cordon", with_signal=signal.SIGINT)
    assert code == 130
    assert stack.pending is not None
    # It was told to start it, or was about to be; in no case is it as if nothing had been ended.
    assert stack.pending["phase"] in {"down", "starting"}
    note(stack, "kill -9, and Ctrl-C of the run after it", "start:prefill-0, cordon", code)


def test_an_engine_that_dies_while_it_loads(stack: Stack) -> None:
    process = stack.begun("await:prefill-0")
    for pid, unit in stack.left(frozenset()).pids.items():
        if unit.endswith("decode-0"):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=200)
    assert process.returncode in {1, 124}
    note(stack, "decode is killed, nothing changed", "await:prefill-0", process.returncode)


def test_a_new_configuration_that_does_not_come_up(stack: Stack) -> None:
    broken = ("--role-set", "decode:args.attention-backend=flashinfer")
    done = stack.dsv4.run("co-restart", "--yes", *broken, stack.profile.path, timeout_s=300)
    assert done.code == 7, done.err
    assert stack.answers()
    note(stack, "a new flag with which decode does not start", "await", done.code)


def test_the_same_without_a_way_back(stack: Stack) -> None:
    broken = ("--no-rollback", "--role-set", "decode:args.attention-backend=flashinfer")
    done = stack.dsv4.run("co-restart", "--yes", *broken, stack.profile.path, timeout_s=300)
    assert done.code == 1, done.err
    assert "there is no way back: --no-rollback was given" in done.err
    note(
        stack, "the same with --no-rollback", "await", done.code, "--unset", "decode.args.attention-backend"
    )  # fmt: skip


def test_a_router_that_is_frozen(stack: Stack) -> None:
    session = stack.record("router")["handle"]["pid"]
    for pid, one in processes(HOST).items():
        if one.session == session or one.ppid == session:
            os.kill(pid, signal.SIGSTOP)
    done = stack.dsv4.run("co-restart", "--yes", stack.profile.path, timeout_s=300)
    assert done.code == 0, done.err
    note(stack, "the router is frozen", "before it", done.code)


def test_a_router_that_dies_meanwhile(stack: Stack) -> None:
    process = stack.begun("pair")
    session = stack.record("router")["handle"]["pid"]
    for pid, one in processes(HOST).items():
        if one.session == session or one.ppid == session:
            os.kill(pid, signal.SIGKILL)
    _, process_said = process.communicate(timeout=200)
    assert process.returncode in {1, 4}
    # The engines are not to blame, so they run on.
    assert "the engines run and have proven themselves" in process_said
    note(stack, "the router is killed", "pair", process.returncode)


def test_a_stranger_on_a_port(stack: Stack) -> None:
    port = stack.record("prefill-0")["ports"]["bootstrap"]
    process = stack.dsv4.start("co-restart", "--yes", stack.profile.path)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def taken() -> bool:
            try:
                stranger.bind(("127.0.0.1", port))
            except OSError:
                return False
            stranger.listen()
            return True

        wait_until(taken, deadline_s=60, interval_s=0.002, what="the port between the old prefill and the new one")
        process.communicate(timeout=120)
    assert process.returncode == 7
    note(stack, "a stranger takes a port of prefill's", "between the two", process.returncode)


def test_a_lock_that_a_living_and_a_dead_dsv4ctl_hold(stack: Stack) -> None:
    first = stack.begun("await:prefill-0")
    second = stack.dsv4.run("co-restart", "--yes", stack.profile.path)
    assert second.code == 6
    assert f"pid {first.pid}" in second.err
    first.kill()
    first.communicate(timeout=60)
    note(stack, "another dsv4ctl has the lock, and is then killed", "await:prefill-0", second.code)


@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_one_side_alone_under_load(stack: Stack, side: str) -> None:
    other = {"decode": "prefill-0", "prefill": "decode-0"}[side]
    stays = stack.record(other)["handle"]["pid"]
    with RetryingClients(stack.profile.url, CLIENTS, seed=5) as clients:
        result = stack.restart("--only", side)
        seen = clients.stop()
    assert seen.wrong == ()
    assert seen.hung == ()
    assert stack.record(other)["handle"]["pid"] == stays
    assert stack.status() == (0, set())
    ROWS.append(
        Row(
            f"`--only {side}`, {CLIENTS} clients",
            "all of it",
            0,
            f"healthy; {sum(seen.fates.values())} requests, {seen.fates['answered']} answered, 0 wrong, 0 hung",
            f"no new request for {result['downtime_s']:.1f} s",
        )
    )


def test_a_restart_of_both_after_one_of_one_side_that_was_cut_off(stack: Stack) -> None:
    old = stack.record("prefill-0")["handle"]["pid"]
    code = stack.cut_at("pair", "--only", "decode")
    assert code == -signal.SIGKILL
    note(stack, "kill -9 of a restart of decode alone, then one of both", "pair", code)
    assert stack.record("prefill-0")["handle"]["pid"] != old


def test_one_side_alone_is_refused_where_the_other_is_no_help(stack: Stack) -> None:
    code = stack.cut_at("await:prefill-0")
    refused = stack.dsv4.run("co-restart", "--only", "decode", "--yes", stack.profile.path)
    assert refused.code == 6
    assert "restart of both sides was begun" in refused.err or "is not running" in refused.err
    note(stack, "kill -9, then --only", "await:prefill-0", code)
    for pid, unit in stack.left(frozenset()).pids.items():
        if unit.endswith("prefill-0"):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stack.status()[0] == 1, deadline_s=20, what="status to see the dead prefill")
    refused = stack.dsv4.run("co-restart", "--only", "decode", "--yes", stack.profile.path)
    assert refused.code == 6
    assert "prefill-0 of the other side is not running" in refused.err
    note(stack, "prefill is dead", "before it", refused.code)


@as_root
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    small = tmp_path / "small"
    before = shm_files()
    with full_disk(small, "400m"):
        stack = served(tmp_path, Dsv4(small), "crd")
        for step in ("evidence", "drain", "start:decode-0", "pair"):
            process = stack.begun(step)
            fill(small / "filler")
            process.communicate(timeout=200)
            (small / "filler").unlink()
            note(stack, "the disk of the state directory fills up", step, process.returncode)
        assert stack.dsv4.run("stop", "--yes", stack.profile.path).code == 0
        assert_gone(stack.profile, before)


@pytest.fixture
def remote(tmp_path: Path, net: SshNet) -> Iterator[tuple[Stack, Sshd]]:
    before = shm_files()
    mine = Dsv4(tmp_path / "state", (("DSV4CTL_SSH_CONFIG", str(net.config)),))
    more = f'engine.python = "{sys.executable}"\nhosts.box.ssh = "via-hop"\n'
    stack = Stack(mine, write_profile(tmp_path, "crs", host="box", more=more), net.target.home / ".local/state")
    done = mine.run("serve", "--detach", stack.profile.path)
    assert done.code == 0, done.err
    yield stack, net.target
    if net.target.process is None:
        net.target.start()
    assert mine.run("stop", "--yes", stack.profile.path).code == 0
    assert_gone(stack.profile, before)


@pytest.mark.parametrize("step", ["cordon", "ended", "await:prefill-0", "pair"])
def test_a_connection_that_is_cut_and_comes_back(remote: tuple[Stack, Sshd], step: str) -> None:
    stack, sshd = remote
    process = stack.begun(step)
    sshd.cut()
    process.communicate(timeout=300)
    assert process.returncode in {0, 4}
    note(stack, "the SSH connection is cut, and can be made again", step, process.returncode)


def test_a_host_that_stays_away(remote: tuple[Stack, Sshd]) -> None:
    stack, sshd = remote
    process = stack.begun("await:prefill-0")
    sshd.stop()
    process.communicate(timeout=300)
    assert process.returncode == 4
    assert stack.dsv4.run("status", stack.profile.path).code == 4
    sshd.start()
    note(stack, "the host is away for longer", "await:prefill-0", process.returncode)


@pytest.mark.timeout(3000)
def test_twenty_in_a_row_under_load_leave_nothing_more(stack: Stack) -> None:
    def counted() -> tuple[int, int]:
        left = stack.left(frozenset())
        return len(left.pids), len(left.ports)

    rng = random.Random(1)
    stack.restart()
    before, shared = counted(), shm_files()
    with RetryingClients(stack.profile.url, CLIENTS, seed=4) as clients:
        for _ in range(IN_A_ROW):
            result = stack.restart("--set", f"SGLANG_LOG_MS={rng.randint(0, 1)}")
            assert result["state"] == "restarted"
        seen = clients.stop()
    assert seen.wrong == ()
    assert seen.hung == ()
    assert counted() == before
    assert shm_files() <= shared
    kept = sorted(path.name for path in (stack.folder / "evidence").iterdir())
    assert len(kept) <= 10
    ROWS.append(
        Row(
            f"{IN_A_ROW} co-restarts in a row, {CLIENTS} clients",
            "all of it",
            0,
            f"healthy; {sum(seen.fates.values())} requests, {seen.fates['answered']} answered, 0 wrong, 0 hung",
            "processes, ports and files in /dev/shm as before",
        )
    )
