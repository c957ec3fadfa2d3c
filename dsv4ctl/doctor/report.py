"""What `dsv4ctl doctor` shows, and the exit code that it comes to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4ctl.console import Column
from dsv4ctl.doctor.bundle.archive import check_path, write
from dsv4ctl.doctor.bundle.collect import Subject as BundleSubject
from dsv4ctl.doctor.bundle.collect import collect
from dsv4ctl.doctor.check import worst_first
from dsv4ctl.doctor.codes import check_code, check_seen, is_told
from dsv4ctl.doctor.deep.conduct import engines_running, run_deep
from dsv4ctl.doctor.deep.judge import findings_of
from dsv4ctl.doctor.deep.report import DeepReport, as_data, rank_name
from dsv4ctl.doctor.session import Examination, Examined, Subject, open_subject
from dsv4ctl.errors import Dsv4Error, ExitCode
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.signals import Interrupts, interruptible

if TYPE_CHECKING:
    from dsv4ctl.console import Console


@dataclass(frozen=True)
class Wanted:
    """What is asked for. `yes`: the deep look may load hosts whose engines run."""

    profile: str | None
    only: str | None = None
    deep: bool = False
    bundle: Path | None = None
    yes: bool = False


def run_doctor(console: "Console", wanted: Wanted) -> ExitCode:
    """Examine a stack, show what was found, and write the bundle that was asked for.

    Returns OK, FAILED where an error was found, UNREACHABLE where none was and something could not be looked at.

    Raises:
        UsageError, NothingRunning, HostUnreachable
        Interrupted: what was found before is shown.
        Refused: the deep look would load hosts whose engines run, and the person said no.
    """
    from dsv4ctl.hosts.connect import open_host

    if wanted.only is not None:
        check_code(wanted.only)
    if wanted.bundle is not None:
        check_path(wanted.bundle)
    with interruptible() as interrupts, open_subject(wanted.profile, open_host) as subject:
        console.target = subject.stack.name
        if wanted.only is not None:
            runs = None if subject.unknown is not None else subject.runs
            check_seen(wanted.only, subject.stack.name, runs=runs, deep=wanted.deep)
        running = _may_be_loaded(console, subject, wanted, interrupts) if wanted.deep else ()
        examined = Examination(subject, interrupts, console.say, wanted.only).run()
        ended: Dsv4Error | None = examined.ended
        deep: DeepReport | None = None
        kept: Mapping[str, object] | None = None
        try:
            if wanted.deep and ended is None:
                deep = _deep(console, subject, running, interrupts)
        except Dsv4Error as error:
            ended = error
        if deep is not None:
            more = [finding for finding in findings_of(deep) if is_told(finding.code, wanted.only)]
            examined = replace(examined, findings=worst_first([*examined.findings, *more]))
        _show(console, subject, examined, deep, whole=ended is None)
        try:
            if wanted.bundle is not None and ended is None:
                kept = _bundle(console, subject, examined, deep, wanted.bundle, interrupts)
        except Dsv4Error as error:
            ended = error
    console.result(_result(subject, examined, deep, kept), ended)
    # What ends it early does not take along what was found before.
    if ended is not None:
        raise ended
    if examined.count(Severity.ERROR):
        return ExitCode.FAILED
    return ExitCode.UNREACHABLE if examined.count(Severity.UNKNOWN) else ExitCode.OK


def _result(
    subject: Subject, examined: Examined, deep: DeepReport | None, kept: Mapping[str, object] | None
) -> Mapping[str, object]:
    generated = examined.generated
    return {
        "stack": subject.stack.name,
        "runs": subject.runs,
        "hosts": list(subject.fleet),
        "checks": examined.checks,
        "seconds": examined.seconds,
        "generations": generated and {"asked": generated.asked, "right": generated.right},
        "deep": None if deep is None else as_data(deep),
        "bundle": kept,
    }


def _may_be_loaded(console: "Console", subject: Subject, wanted: Wanted, interrupts: Interrupts) -> Sequence[str]:
    """The engines that run on these hosts; the person agrees to what a deep look does beside them.

    Raises:
        Refused, UsageError: the person does not, or cannot be asked.
    """
    running = engines_running(subject.fleet, subject.records)
    if running:
        question = (
            f"Write up to 256 MB between each two ranks, on hosts where {', '.join(running)} may be serving people?"
        )
        console.confirm(question, yes=wanted.yes, check=interrupts.check)
    return running


def _deep(console: "Console", subject: Subject, running: Sequence[str], interrupts: Interrupts) -> DeepReport:
    hosts = {name: place.host for name, place in subject.fleet.items()}
    return run_deep(
        subject.stack, hosts, running=running, beside=bool(running), tell=console.say, check=interrupts.check
    )


def _show(console: "Console", subject: Subject, examined: Examined, deep: DeepReport | None, *, whole: bool) -> None:
    folded = [finding for alike in _by_reason(examined.findings).values() for finding in alike]
    for finding in examined.findings:
        # A program gets each; a person the reason, once.
        if console.machine or finding not in folded:
            console.finding(finding, as_data=True)
    if console.machine:
        return
    for line in together(examined.findings):
        console.data(line)
    if deep is not None and (rows := deep_rows(deep)):
        console.table(DEEP_COLUMNS, rows)
    is_known = subject.unknown is None
    console.data(summary(subject.stack.name, examined, runs=subject.runs, is_known=is_known, whole=whole))


DEEP_COLUMNS = (
    Column("from"),
    Column("to"),
    Column("lane"),
    Column("first write", right=True),
    Column("largest alone", right=True),
    Column("all at once", right=True),
)


def deep_rows(deep: DeepReport) -> list[list[str]]:
    """A row for each pair of ranks, with GB/s at its largest size alone, and of all pairs of its workers together."""
    rows: list[list[str]] = []
    for report in deep.pairings:
        together_gb = report.together_gb_per_s
        for pair in report.pairs:
            speed = report.bulk.get((pair.source, pair.destination))
            rows.append(
                [
                    rank_name(report.pairing.source, pair.source),
                    rank_name(report.pairing.destination, pair.destination),
                    "/".join(pair.lane) if pair.lane else "unknown",
                    f"{pair.first_write_s:.2f} s",
                    "-" if speed is None else f"{speed:.2f} GB/s",
                    "-" if together_gb is None else f"{together_gb:.2f} GB/s",
                ]
            )
    return rows


def _bundle(
    console: "Console",
    subject: Subject,
    examined: Examined,
    deep: DeepReport | None,
    path: Path,
    interrupts: Interrupts,
) -> dict[str, object]:
    of = BundleSubject(subject.stack.name, subject.fleet, subject.stack, subject.loaded, subject.records)
    more = {} if deep is None else {"deep.json": json.dumps(as_data(deep), indent=1).encode()}
    bundle = collect(of, examined.findings, more=more, tell=console.say, check=interrupts.check)
    for name, size, why in bundle.rows():
        console.say(f"{size:>10}  {name}{f'  (missing: {why})' if why else ''}")
    size = write(bundle, path, check=interrupts.check)
    console.say(f"{path} has {len(tuple(bundle.rows()))} files, {size} bytes")
    console.say("what is known or looks like a secret is a fingerprint there; look through it before you hand it out")
    return {"path": str(path), "bytes": size, "missing": [member.name for member in bundle.missing]}


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


def summary(name: str, examined: Examined, *, runs: bool, is_known: bool = True, whole: bool = True) -> str:
    """The last line: how much was looked at, and what came of it. `is_known`: whether it runs could be seen; `whole`:
    the look was not ended early."""
    counts = [
        f"{number} {word if number == 1 else plural}"
        for severity, word, plural in (
            (Severity.ERROR, "error", "errors"),
            (Severity.WARNING, "warning", "warnings"),
            (Severity.UNKNOWN, "thing that could not be seen", "things that could not be seen"),
        )
        if (number := examined.count(severity))
    ]
    state = "which runs" if runs else "which does not run" if is_known else "of which nobody knows whether it runs"
    generated = examined.generated
    answers = f"; {generated.right} of {generated.asked} generations right" if generated is not None else ""
    found = ", ".join(counts) or ("nothing is wrong" if whole else "nothing was found")
    return f"{name}, {state}: {found}{answers}{'' if whole else '; the look was ended before its end'}"
