"""Planned against running: what a process was really started with, read back from /proc."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.procfs import cmdline, environ
from dsv4ctl.redaction import redact, redact_argv

if TYPE_CHECKING:
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
        Drift(name, planned, running)
        for name, planned in record.env.items()
        if (running := redact(name, actual[name]) if name in actual else None) != planned
    ]
    argv = redact_argv(cmdline(host, pid))
    if not _same_command(record.argv, argv):
        drifts.append(Drift("command line", " ".join(record.argv), " ".join(argv)))
    return tuple(drifts)


def _same_command(planned: tuple[str, ...], running: tuple[str, ...]) -> bool:
    # An interpreter may be found through PATH or a link.
    return planned_tail(planned)[1:] == running[1:]


def planned_tail(planned: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a planned command that a process shows: numactl replaces itself by what it starts."""
    rest = 0
    if planned and planned[0] == "numactl":
        rest = 1
        while rest < len(planned) and planned[rest].startswith("-"):
            rest += 1
    return planned[rest:]
