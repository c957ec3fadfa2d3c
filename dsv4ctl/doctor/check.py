"""A check: one thing that can be wrong with a host, under a stable code."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.findings import Evidence, Finding, Severity

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


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        code: stable; docs/findings has a page of that name.
        severity: ERROR where it surely breaks the stack.
        asks: what it asks, as a question that a person would ask.
        remedy: what to do when it fires.
        source: where the fault is described in public; empty where it is plain.
        questions: what has to be asked of the host for it.
        find: the faults of a host; raises Unseen where it cannot look.
    """

    code: str
    severity: Severity
    asks: str
    remedy: str
    source: str
    questions: tuple[Question, ...]
    find: Callable[[Patient], Iterable[Fault]]

    def examine(self, patient: Patient) -> tuple[Finding, ...]:
        """The findings on one host; one of severity UNKNOWN where it cannot look."""
        try:
            faults = tuple(self.find(patient))
        except Unseen as why:
            message = f"{patient.host}: {self.asks} Nobody knows: {why}"
            remedy = "let it be looked at (as root, with the driver and pciutils installed), or look by hand"
            return (Finding(self.code, Severity.UNKNOWN, message, remedy, {"host": patient.host}),)
        return tuple(
            Finding(
                self.code,
                fault.severity or self.severity,
                f"{patient.host}: {fault.message}",
                fault.remedy or self.remedy,
                {"host": patient.host, **fault.evidence, "source": self.source or None},
            )
            for fault in faults
        )


def all_checks() -> tuple[Check, ...]:
    """Every check in `dsv4ctl.doctor.checks`, by code. Each module there has one, named CHECK."""
    from dsv4ctl.doctor import checks

    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}") for found in pkgutil.iter_modules(checks.__path__)
    ]
    return tuple(sorted((module.CHECK for module in modules), key=lambda check: check.code))


def questions_of(checks: Iterable[Check]) -> tuple[Question, ...]:
    """What has to be asked for all of them, each question once."""
    return tuple(dict.fromkeys(question for check in checks for question in check.questions))


def examine(checks: Iterable[Check], patient: Patient) -> tuple[Finding, ...]:
    """All findings on one host, the worst first."""
    return worst_first([finding for check in checks for finding in check.examine(patient)])


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors, then warnings, then what nobody knows; each in the order in which it came."""
    return tuple(sorted(findings, key=lambda finding: ORDER.index(finding.severity)))
