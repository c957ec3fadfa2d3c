"""Findings: what an instrument noticed, with a stable code, evidence and a remedy. One page in docs/findings each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Evidence = str | int | float | bool | None


class Severity(StrEnum):
    """ERROR makes a command fail; WARNING is said and does not; UNKNOWN means that we could not look."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One thing noticed. `message` is a sentence that names the host, role, port or pid; `evidence` holds the figures
    it rests on; `remedy` is the next thing to do."""

    code: str
    severity: Severity
    message: str
    remedy: str
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


def errors(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Those that make a command fail."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
