"""A lock on a host is a process there: one holder, named to the others, and free the moment it is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4ctl.errors import Refused
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.locks import HeldLock, hold_lock
from dsv4ctl.waiting import wait_until

HOLD = """
import sys
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.locks import hold_lock
with hold_lock(LocalHost(), sys.argv[1], "serve"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "stacks" / "x" / "lock")


def test_one_at_a_time_and_the_other_is_told_who(path: str) -> None:
    with hold_lock(LocalHost(), path, "serve"), pytest.raises(Refused, match=rf"dsv4ctl serve, pid {os.getpid()} of"):
        HeldLock(LocalHost(), path, "stop").take(0.0)
    with hold_lock(LocalHost(), path, "stop"):
        pass


def test_a_holder_that_is_killed_lets_go(path: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(Refused, match=f"pid {child.pid}"):
            HeldLock(LocalHost(), path, "stop").take(0.0)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        with hold_lock(LocalHost(), path, "stop", wait_s=10.0):
            pass


def test_waiting_for_the_lock_gets_it_when_it_is_free(path: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        child.stdin.close()
        with hold_lock(LocalHost(), path, "stop", wait_s=20.0):
            assert child.wait(10) == 0


def test_a_lock_that_went_is_taken_again(path: str) -> None:
    with hold_lock(LocalHost(), path, "serve") as lock:
        (holder,) = [pid for pid in holders(path) if pid != os.getpid()]
        os.kill(holder, signal.SIGKILL)
        wait_until(lambda: holder not in holders(path), deadline_s=10, what="the holder's end")
        lock.ensure()
        with pytest.raises(Refused):
            HeldLock(LocalHost(), path, "stop").take(0.0)


def test_a_lock_that_another_took_meanwhile_is_not_ours_any_more(path: str) -> None:
    with hold_lock(LocalHost(), path, "serve") as lock:
        for holder in holders(path):
            os.kill(holder, signal.SIGKILL)
        with hold_lock(LocalHost(), path, "stop", wait_s=5.0), pytest.raises(Refused, match="dsv4ctl stop"):
            lock.take(0.0)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be written"):
        HeldLock(LocalHost(), str(tmp_path / "file" / "lock"), "serve").take(0.0)


def holders(path: str) -> list[int]:
    """Pids of the processes that have the lock's file open."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if descriptor.readlink() == Path(path):
                found.append(int(descriptor.parts[2]))
        except (FileNotFoundError, PermissionError):
            continue
    return sorted(set(found))
