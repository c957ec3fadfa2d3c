"""Planned against running: what a process was really started with, read back from /proc."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.procfs import cmdline, environ
from dsv4ctl.redaction import argv_stands_for, redact, redact_argv, stands_for
from dsv4ctl.timers import INFLIGHT_TIMEOUT, timers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4ctl.hosts.base import Host
    from dsv4ctl.state import WorkerRecord


@dataclass(frozen=True)
class Drift:
    """One difference. `planned` or `running` is None where that side has nothing; secrets are fingerprints."""

    what: str
    planned: str | None
    running: str | None

    def __str__(self) -> str:
        planned = "not set" if self.planned is None else repr(self.planned)
        running = "not set" if self.running is None else repr(self.running)
        return f"{self.what}: planned {planned}, running {running}"


def drift_of(host: "Host", pid: int, record: "WorkerRecord") -> tuple[Drift, ...]:
    """Every planned variable and the command line that differ in the running process; empty when it runs as planned.

    Variables that were not planned are no drift: a process inherits PATH and its like.

    Raises:
        FileNotFoundError, PermissionError: the process has gone, or is not ours to look into.
        OperationFailed: the process has written over its environment.
        HostUnreachable
    """
    actual = environ(host, pid)
    drifts = [
        Drift(name, redact(name, planned), redact(name, actual[name]) if name in actual else None)
        for name, planned in record.env.items()
        if name not in actual or not stands_for(planned, name, actual[name])
    ]
    argv = cmdline(host, pid)
    # An interpreter may be found through PATH or a link.
    if not argv_stands_for(planned_tail(record.argv)[1:], argv[1:]):
        drifts.append(Drift("command line", " ".join(redact_argv(record.argv)), " ".join(redact_argv(argv))))
    return tuple(drifts)


def with_told_timeout(drifts: "Sequence[Drift]", record: "WorkerRecord", told_s: float | None) -> "tuple[Drift, ...]":
    """The same with the inflight timeout that the engine says is in force, which can be changed after its start; 0 is
    none. Without it (None) the environment of its process has to do."""
    if told_s is None:
        return tuple(drifts)
    planned = record.env.get(INFLIGHT_TIMEOUT)
    try:
        (planned_s,) = (t.seconds for t in timers_of(record.name, record.role, record.env, ()) if t.letter == "T")
    except ValueError:
        return tuple(drifts)
    rest = [drift for drift in drifts if drift.what != INFLIGHT_TIMEOUT]
    if (planned_s or 0.0) != told_s:
        rest.append(Drift(INFLIGHT_TIMEOUT, planned, f"{told_s:g}"))
    return tuple(rest)


def planned_tail(planned: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a planned command that a process shows: numactl replaces itself by what it starts."""
    rest = 0
    if planned and planned[0] == "numactl":
        rest = 1
        while rest < len(planned) and planned[rest].startswith("-"):
            rest += 1
    return planned[rest:]
