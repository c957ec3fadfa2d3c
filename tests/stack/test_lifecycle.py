"""A stack ends as a whole, whichever way it ends, and nothing of it is left."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dsv4ctl.procfs import marked_processes
from dsv4ctl.stack import UNIT_VARIABLE
from dsv4ctl.waiting import wait_until
from tests.engine import HOST, Dsv4, StackProfile, assert_gone, shm_files, write_profile

pytestmark = pytest.mark.stack

STOP_WITHIN_S = 10.0
REQUESTS = 4


@pytest.fixture
def mine(tmp_path: Path) -> Dsv4:
    return Dsv4(tmp_path / "state")


def until(stream: Iterator[str], text: str) -> str:
    """Read lines until one contains `text`; pytest's timeout is the deadline."""
    seen = []
    for line in stream:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError("".join(seen))


@contextmanager
def requests_running(url: str) -> Iterator[None]:
    """Four generations that would take minutes, begun and not ended."""

    def generate() -> None:
        body = {"model": "tiny", "prompt": "never ends ", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
                began.extend(None for _ in response.iter_bytes())
        except httpx.HTTPError:
            return

    began: list[None] = []
    with ThreadPoolExecutor(REQUESTS) as pool:
        for _ in range(REQUESTS):
            pool.submit(generate)
        wait_until(lambda: len(began) > 2 * REQUESTS, deadline_s=60, what="tokens of running requests")
        yield


def in_foreground(mine: Dsv4, profile: StackProfile) -> "subprocess.Popen[str]":
    serving = mine.start("serve", profile.path)
    assert serving.stderr is not None
    until(serving.stderr, "Ctrl-C ends the stack")
    return serving


def test_ctrl_c_ends_everything_within_ten_seconds_with_requests_running(mine: Dsv4, tmp_path: Path) -> None:
    before = shm_files()
    profile = write_profile(tmp_path, "ctrlc")
    serving = in_foreground(mine, profile)
    with requests_running(profile.url):
        began = time.monotonic()
        serving.send_signal(signal.SIGINT)
        _, errors = serving.communicate(timeout=60)
        seconds = time.monotonic() - began
    assert serving.returncode == 130, errors
    assert "nothing of it is left" in errors
    assert_gone(profile, before)
    assert seconds < STOP_WITHIN_S
    assert mine.run("status", profile.path).code == 3


@pytest.mark.beside
def test_ctrl_c_twice_ends_everything_too(mine: Dsv4, tmp_path: Path) -> None:
    before = shm_files()
    profile = write_profile(tmp_path, "pressed-twice")
    serving = in_foreground(mine, profile)
    serving.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        serving.wait(0.6)
    serving.send_signal(signal.SIGINT)
    _, errors = serving.communicate(timeout=60)
    assert serving.returncode == 130, errors
    assert_gone(profile, before)


@pytest.mark.beside
def test_after_kill_9_of_dsv4ctl_the_stack_serves_on_and_stop_ends_it(mine: Dsv4, tmp_path: Path) -> None:
    before = shm_files()
    profile = write_profile(tmp_path, "kill9")
    serving = in_foreground(mine, profile)
    serving.kill()
    serving.communicate(timeout=30)
    with requests_running(profile.url):
        assert mine.run("status", profile.path).code == 0
        stopped = mine.run("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(profile, before)
    assert mine.run("stop", "--yes", profile.path).code == 3


@pytest.mark.beside
def test_a_dead_scheduler_ends_the_stack_with_its_first_error(mine: Dsv4, tmp_path: Path) -> None:
    before = shm_files()
    profile = write_profile(tmp_path, "death")
    serving = in_foreground(mine, profile)
    prefill = [pid for pid, unit in marked_processes(HOST, UNIT_VARIABLE, profile.units).items() if "prefill" in unit]
    scheduler = next(pid for pid in sorted(prefill) if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(scheduler, signal.SIGKILL)
    _, errors = serving.communicate(timeout=90)
    assert serving.returncode == 1, errors
    assert "prefill-0 on local is not running" in errors
    assert_gone(profile, before)
