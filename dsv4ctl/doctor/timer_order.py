"""Timers that stand in the wrong order, as findings."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dsv4ctl.findings import Finding, Severity
from dsv4ctl.timers import broken, timers_of


class Timed(Protocol):
    """A worker, planned or recorded."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def argv(self) -> tuple[str, ...]: ...


def timer_findings(workers: Sequence["Timed"]) -> list[Finding]:
    """TIMERS_OUT_OF_ORDER for each pair of timers that stands wrong, by what these workers were started with."""
    try:
        timers = [timer for worker in workers for timer in timers_of(worker.name, worker.role, worker.env, worker.argv)]
    except ValueError as error:
        message = f"the timers of the stack cannot be compared: {error}"
        return [Finding("TIMERS_OUT_OF_ORDER", Severity.UNKNOWN, message, "correct that value in the profile")]
    return [
        Finding(
            "TIMERS_OUT_OF_ORDER",
            Severity.WARNING,
            str(pair),
            f"make {pair.inner.set_by} shorter, or {pair.outer.set_by} longer",
            {"inner": pair.inner.set_by, "inner_s": pair.inner.seconds, "outer": pair.outer.set_by},
        )
        for pair in broken(timers)
    ]
