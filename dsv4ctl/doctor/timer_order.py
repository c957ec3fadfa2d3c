"""Timers that stand in the wrong order, as findings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dsv4ctl.findings import Finding, Severity
from dsv4ctl.timers import Timer, broken, timers_of

if TYPE_CHECKING:
    from dsv4ctl.chain import Unread


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
    return order_findings(timers)


def order_findings(timers: Sequence[Timer]) -> list[Finding]:
    """TIMERS_OUT_OF_ORDER for each pair of these timers that stands wrong."""
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


def unread_findings(unread: "Sequence[Unread]") -> list[Finding]:
    """TIMERS_OUT_OF_ORDER, unknown, for each worker whose timers could not be learnt."""
    remedy = "see what else is told of that worker, and look again"
    return [
        Finding(
            "TIMERS_OUT_OF_ORDER",
            Severity.UNKNOWN,
            f"the timers of the stack are not all known: {one}",
            remedy,
            {"worker": one.worker},
        )
        for one in unread
    ]
