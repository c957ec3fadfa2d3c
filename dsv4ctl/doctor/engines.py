"""What the engine's own interpreter says of a plan: names that it does not know, patches that do not fit, hazards."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsv4ctl.doctor.pd_fixes import PdFix, lacking
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.knobs import lint_on
from dsv4ctl.restart.agreement import Settings, by_argv, disagreements, one_sided
from dsv4ctl.restart.checks import ask_engine, has_plugin
from dsv4ctl.restart.patch_table import Table
from dsv4ctl.restart.safety import Side, safety_of

if TYPE_CHECKING:
    from dsv4ctl.fleet import Fleet
    from dsv4ctl.profile.loading import LoadedProfile
    from dsv4ctl.stack import Stack


def engine_findings(
    loaded: "LoadedProfile", fleet: "Fleet", stack: "Stack", packages: Mapping[str, Mapping[str, str]]
) -> tuple[Finding, ...]:
    """Findings on all engines of a plan. Nothing is started. `packages` are those of each host's interpreter.

    Raises:
        HostUnreachable, DeadlineExceeded
    """
    settings = [Settings(worker.name, worker.role, "the plan", by_argv(worker.argv)) for worker in stack.engines]
    findings = [*_lint(loaded, fleet), *disagreements(settings), *one_sided(settings)]
    tables: dict[str, Table] = {}
    ours = [worker for worker in stack.engines if "dsv4ctl" in packages.get(worker.host, {}) and has_plugin(worker)]
    with ThreadPoolExecutor(max(1, len(ours))) as pool:
        asked = [pool.submit(ask_engine, fleet[worker.host], worker) for worker in ours]
    for worker, future in zip(ours, asked, strict=True):
        table, found = future.result()
        findings += found
        tables[worker.role] = table or {}
    for host in dict.fromkeys(worker.host for worker in stack.engines):
        findings += of_version(host, packages.get(host, {}).get("sglang"), tables)
    return tuple(findings)


def _lint(loaded: "LoadedProfile", fleet: "Fleet") -> list[Finding]:
    linted = lint_on(
        loaded,
        {name: place.host for name, place in fleet.items()},
        {name: place.site.python for name, place in fleet.items()},
    )
    found = [
        Finding(
            "KNOB_UNREAD",
            Severity.ERROR,
            str(problem),
            "correct it in the profile; `dsv4ctl serve` refuses it",
            {"key": problem.key},
        )
        for problem in linted.problems
    ]
    found += linted.findings
    found += [
        Finding("KNOB_UNREAD", Severity.UNKNOWN, note, "install dsv4ctl beside the engine on that host")
        for note in linted.notes
    ]
    return found


def _remedy(fix: PdFix) -> str:
    later = f"use sglang {'.'.join(map(str, fix.since))} or later" if fix.since is not None else ""
    ours = f"let patch {fix.patch} be applied" if fix.patch is not None else ""
    return ", or ".join(filter(None, (later, ours)))


def of_version(host: str, version: str | None, tables: Mapping[str, Table]) -> list[Finding]:
    """PD_FIX_MISSING for each repair that this version lacks and no patch of ours makes; whether one side can be
    restarted alone is a warning of its own."""
    if version is None or not {"prefill", "decode"} & tables.keys():
        return []
    missing = lacking(version)
    if missing is None:
        message = f"{host} has sglang {version}: nobody has looked which repairs of disaggregation it carries"
        remedy = "use the version that the profile was tested with, or compare by hand"
        return [Finding("PD_FIX_MISSING", Severity.UNKNOWN, message, remedy, {"host": host, "version": version})]
    applied = {name for table in tables.values() for name, status in table.items() if status == "applied"}
    found = [
        Finding(
            "PD_FIX_MISSING",
            Severity.WARNING,
            f"sglang {version} on {host} lacks this: {fix.what}. Without it {fix.without}",
            _remedy(fix),
            {"host": host, "version": version, "upstream": fix.upstream, "patch": fix.patch},
        )
        for fix in missing
        if fix.patch not in applied
    ]
    sides: tuple[tuple[Side, str], ...] = (("decode", "prefill"), ("prefill", "decode"))
    for side, stays in sides:
        if stays in tables and not (safety := safety_of(side, version, tables[stays])).safe:
            found.append(
                Finding(
                    "ONE_SIDE_UNSAFE",
                    Severity.WARNING,
                    f"{side} on {host} cannot be restarted alone: {safety.why}",
                    "restart both with `dsv4ctl co-restart`",
                    {"host": host, "side": side, "version": version},
                )
            )
    return found
