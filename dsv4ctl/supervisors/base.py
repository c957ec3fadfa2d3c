"""What keeps a worker alive, and how we know it is ours: by pid and start time or its unit's cgroup, never by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import LogSource

_UNIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class UnitSpec:
    """What to run. `name` is unique on the host, e.g. `dsv4-cpu-prefill-0`; it names the log and the unit.

    `env` is added to a minimal environment (HOME, PATH, USER, LANG, XDG_RUNTIME_DIR of the host).
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


@dataclass(frozen=True)
class UnitHandle:
    """How to find a started unit again, from another process, later. It is what the state directory keeps.

    `pid` with `start_ticks` (field 22 of /proc/PID/stat) and `boot_id` name one process for good: a reused pid or a
    reboot cannot be mistaken for it. For `process` it is the leader of the unit's own session; for `systemd` the
    unit's main process at the time of the start, and `invocation_id` names that start.
    """

    supervisor: Literal["process", "systemd"]
    unit: str
    pid: int
    start_ticks: int
    boot_id: str
    invocation_id: str | None = None


def check_unit_name(name: str) -> None:
    """A unit's name becomes a file's and a service's name, so it is letters, digits, `_`, `.` and `-`.

    Raises:
        OperationFailed: it is not.
    """
    if not _UNIT_NAME.fullmatch(name):
        raise OperationFailed(f"{name!r} is no name for a unit", hint=f"it must match {_UNIT_NAME.pattern}")


class UnitState(StrEnum):
    """RUNNING: the worker is there. EXITED: it ended, the status is known. GONE: it is not there and nobody saw how it
    ended. FOREIGN: the pid, or the unit's name, now belongs to something we did not start. REBOOTED: the machine was
    restarted since."""

    RUNNING = "running"
    EXITED = "exited"
    GONE = "gone"
    FOREIGN = "foreign"
    REBOOTED = "rebooted"


@dataclass(frozen=True)
class UnitStatus:
    """State of a unit now. `age_s` since its start; `exit_code` negative for a signal, as subprocess has it.

    `main_pid` is the worker itself (not the shepherd); `pids` is everything alive in the unit.
    """

    state: UnitState
    main_pid: int | None
    pids: tuple[int, ...]
    age_s: float | None
    exit_code: int | None


class Supervisor(Protocol):
    """Starts and ends units on one host."""

    def start(self, spec: UnitSpec) -> UnitHandle:
        """Start a unit that outlives us and our connection.

        Raises:
            OperationFailed: the program does not exist, the unit's name is in use, the log cannot be written.
        """

    def find(self, unit: str) -> UnitHandle | None:
        """The handle of a unit by its name, from what the supervisor itself keeps; None when it knows no such unit.

        It serves where our own record was lost, or could not be written before we were ended.
        """

    def status(self, handle: UnitHandle) -> UnitStatus:
        """What is true now; asks the kernel or systemd each time."""

    def terminate(self, handle: UnitHandle) -> None:
        """SIGTERM to the worker. Returns at once; a unit that is already gone is no error."""

    def kill(self, handle: UnitHandle) -> None:
        """SIGKILL to every process of the unit, and of nothing else."""

    def forget(self, handle: UnitHandle) -> None:
        """Remove what the supervisor itself keeps about an ended unit (pid files, failed units). Logs stay."""

    def log(self, unit: str, handle: UnitHandle | None = None) -> LogSource:
        """Where the output of a unit of that name goes, or went; with `handle`, that of this start alone."""
