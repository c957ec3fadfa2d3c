"""A check: one thing that can be wrong with a host, under a stable code."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.doctor.asking import Question, ask
from dsv4ctl.doctor.box import Box, Patient, Unseen
from dsv4ctl.findings import Evidence, Finding, Severity

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

ORDER = (Severity.ERROR, Severity.WARNING, Severity.UNKNOWN)


@dataclass(frozen=True)
class Fault:
    """What a check found: a sentence that names the GPU, port or pid, and the figures it rests on.

    `severity` and `remedy` are given where they are others than the check's own.
    """

    message: str
    evidence: dict[str, Evidence]
    severity: Severity | None = None
    remedy: str | None = None


def always(_: Patient) -> bool:
    """A check that is of interest on every host."""
    return True


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        code: stable; docs/findings has a page of that name.
        severity: ERROR where it surely breaks the stack.
        asks: what it asks, as a question that a person would ask.
        remedy: what to do when it fires.
        source: where the fault is described in public; empty where it is plain.
        questions: what has to be asked of the host for it; a function where that depends on the plan.
        find: the faults of a host; raises Unseen where it cannot look, after those that it has found.
        applies: whether a host with that plan is asked at all. It looks at the plan alone: nothing is asked yet.
    """

    code: str
    severity: Severity
    asks: str
    remedy: str
    source: str
    questions: tuple[Question, ...] | Callable[[Patient], tuple[Question, ...]]
    find: Callable[[Patient], Iterable[Fault]]
    applies: Callable[[Patient], bool] = always

    def asked_of(self, patient: Patient) -> tuple[Question, ...]:
        """What has to be asked of a host with that plan; its box is not looked at."""
        return self.questions(patient) if callable(self.questions) else self.questions

    def examine(self, patient: Patient) -> tuple[Finding, ...]:
        """The findings on one host; also one of severity UNKNOWN where it cannot look; none where it does not apply."""
        if not self.applies(patient):
            return ()
        found: list[Finding] = []
        try:
            for fault in self.find(patient):
                severity, remedy = fault.severity or self.severity, fault.remedy or self.remedy
                evidence = {"host": patient.host, **fault.evidence, "source": self.source or None}
                found.append(Finding(self.code, severity, f"{patient.host}: {fault.message}", remedy, evidence))
        except Unseen as why:
            message = f"{patient.host}: {self.asks} Nobody knows: {why}"
            remedy = why.remedy or f"look by hand: docs/findings/{self.code}.md says how it is known"
            found.append(Finding(self.code, Severity.UNKNOWN, message, remedy, {"host": patient.host, "why": str(why)}))
        return tuple(found)


def all_checks() -> tuple[Check, ...]:
    """Every check in `dsv4ctl.doctor.checks`, by code. Each module there has one, named CHECK."""
    from dsv4ctl.doctor import checks

    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}") for found in pkgutil.iter_modules(checks.__path__)
    ]
    return tuple(sorted((module.CHECK for module in modules), key=lambda check: check.code))


def questions_of(checks: Iterable[Check], patient: Patient) -> tuple[Question, ...]:
    """What has to be asked of a host with that plan, each question once. A check that does not apply asks nothing."""
    applying = [check for check in checks if check.applies(patient)]
    return tuple(dict.fromkeys(question for check in applying for question in check.asked_of(patient)))


def examine(checks: Iterable[Check], patient: Patient) -> tuple[Finding, ...]:
    """All findings on one host, the worst first."""
    return worst_first([finding for check in checks for finding in check.examine(patient)])


def look_at(host: "Host", checks: Sequence[Check], patient: Patient, *, root: str = "") -> Patient:
    """The patient with everything that the checks have to ask, in one round trip.

    Raises:
        OperationFailed, HostUnreachable, DeadlineExceeded
    """
    return replace(patient, box=Box(ask(host, questions_of(checks, patient), root=root)))


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors, then warnings, then what nobody knows; each in the order in which it came."""
    return tuple(sorted(findings, key=lambda finding: ORDER.index(finding.severity)))
