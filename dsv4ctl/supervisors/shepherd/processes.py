"""Processes by pid and start time: looking, signalling, and ending all of a group that may be forking."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

USER_HZ = 100
"""Clock ticks a second in /proc: fixed at 100 in the kernel's interface on x86-64 and arm64."""


class Process(NamedTuple):
    """From /proc/PID/stat. A zombie is not alive, unless other threads of it are."""

    pid: int
    ppid: int
    session: int
    start_ticks: int
    alive: bool


def parse_stat(data: bytes) -> Process:
    """One /proc/PID/stat. The command's name may hold anything, but only numbers follow it: the last ")" ends it."""
    head, _, tail = data.rpartition(b") ")
    fields = tail.split()
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Process(int(head.split()[0]), int(fields[1]), int(fields[3]), int(fields[19]), alive)


def look(pid: int) -> Process | None:
    """The process with that pid now, or None."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None


def table() -> dict[int, Process]:
    """All processes by pid."""
    found = (look(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {process.pid: process for process in found if process}


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether that very process lives, not another with its pid."""
    process = look(pid)
    return process is not None and process.start_ticks == start_ticks and process.alive


def boot_id() -> str:
    """The kernel's random name of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def age_s(start_ticks: int) -> float:
    """Seconds since a process was started."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return max(0.0, uptime - start_ticks / USER_HZ)


def send(pid: int, start_ticks: int, number: int) -> None:
    """Signal that very process. Nothing happens when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        if not hasattr(os, "pidfd_open"):  # Python 3.8: the pid could be reused between the look and the signal
            if is_alive(pid, start_ticks):
                os.kill(pid, number)
            return
        pidfd = os.pidfd_open(pid)
        try:
            # An open pidfd stays with one process. If the pid's start time is right now, that process is the one.
            if is_alive(pid, start_ticks):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def family(known: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The living processes that belong with the `known` ones (pid, start time), and those: pid to start time.

    A session cannot be joined, only made by one's own process, and its number is not reused while any process is in it.
    So what shares a session with a member is a member, and what descends from a member is one, until nothing is added.
    The known ones must be of sessions made within the unit.
    """
    now = table()
    found = {pid for pid, ticks in known if pid in now and now[pid].start_ticks == ticks}
    while True:
        # 0 stands for a session that was made outside of our pid namespace.
        sessions = {now[pid].session for pid in found} - {0}
        grown = {p.pid for p in now.values() if p.pid in found or p.session in sessions or p.ppid in found}
        if grown == found:
            return {pid: now[pid].start_ticks for pid in sorted(found) if now[pid].alive}
        found = grown


def kill_all(victims: Callable[[], dict[int, int]], deadline_s: float) -> dict[int, int]:
    """SIGKILL to `victims` until none is left, or the deadline; returns those that are left.

    They are stopped first. A stopped process cannot fork, so once a look finds nobody new, nobody can slip away
    between the look and the kill.
    """
    end = time.monotonic() + deadline_s
    while victims() and time.monotonic() < end:
        stopped: set[tuple[int, int]] = set()
        while True:
            new = set(victims().items()) - stopped
            if not new:
                break
            for pid, ticks in new:
                send(pid, ticks, signal.SIGSTOP)
            stopped |= new
        for pid, ticks in stopped:
            send(pid, ticks, signal.SIGKILL)
        wait_for(lambda: not victims(), min(0.5, max(0.0, end - time.monotonic())))
    return victims()


def wait_for(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Poll until the condition holds; False when it did not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True
