"""What `dsv4ctl doctor` shows, and the exit code that it comes to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4ctl.doctor.session import Examination, Examined, open_subject
from dsv4ctl.errors import ExitCode
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.signals import interruptible

if TYPE_CHECKING:
    from dsv4ctl.console import Console


def run_doctor(console: "Console", ref: str | None, *, only: str | None) -> ExitCode:
    """Examine a stack and show what was found.

    Returns OK, FAILED where an error was found, UNREACHABLE where none was and something could not be looked at.

    Raises:
        UsageError, HostUnreachable, Interrupted
    """
    from dsv4ctl.hosts.connect import open_host

    with interruptible() as interrupts, open_subject(ref, open_host) as subject:
        console.target = subject.stack.name
        examined = Examination(subject, interrupts, console.say, only).run()
        runs = subject.runs
    folded = [finding for alike in _by_reason(examined.findings).values() for finding in alike]
    for finding in examined.findings:
        # A program gets each; a person the reason, once.
        if console.machine or finding not in folded:
            console.finding(finding, as_data=True)
    if not console.machine:
        for line in together(examined.findings):
            console.data(line)
        console.data(summary(subject.stack.name, examined, runs=runs))
    generated = examined.generated
    console.result(
        {
            "stack": subject.stack.name,
            "runs": runs,
            "hosts": list(subject.fleet),
            "checks": examined.checks,
            "seconds": examined.seconds,
            "generations": generated and {"asked": generated.asked, "right": generated.right},
        }
    )
    if examined.count(Severity.ERROR):
        return ExitCode.FAILED
    return ExitCode.UNREACHABLE if examined.count(Severity.UNKNOWN) else ExitCode.OK


FOLDED_FROM = 3
"""So many checks that cannot look for one and the same reason are told in one line."""


def together(findings: Sequence[Finding]) -> tuple[str, ...]:
    """A line for each reason that kept several checks of a host from looking."""
    return tuple(
        f"unknown for one reason, {why} on {host}: {', '.join(finding.code for finding in alike)}"
        for (host, why), alike in _by_reason(findings).items()
    )


def _by_reason(findings: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    reasons: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.severity is Severity.UNKNOWN and "why" in finding.evidence:
            reason = (str(finding.evidence["host"]), str(finding.evidence["why"]))
            reasons.setdefault(reason, []).append(finding)
    return {reason: alike for reason, alike in reasons.items() if len(alike) >= FOLDED_FROM}


def summary(name: str, examined: Examined, *, runs: bool) -> str:
    """The last line: how much was looked at, and what came of it."""
    counts = [
        f"{number} {word if number == 1 else plural}"
        for severity, word, plural in (
            (Severity.ERROR, "error", "errors"),
            (Severity.WARNING, "warning", "warnings"),
            (Severity.UNKNOWN, "thing that could not be seen", "things that could not be seen"),
        )
        if (number := examined.count(severity))
    ]
    state = "which runs" if runs else "which does not run"
    generated = examined.generated
    answers = f"; {generated.right} of {generated.asked} generations right" if generated is not None else ""
    return f"{name}, {state}: {', '.join(counts) or 'nothing is wrong'}{answers}"
