"""One run of `dsv4ctl co-restart`: recognise, lock, check, show, ask, do, prove, report."""

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dsv4ctl.console import Console
from dsv4ctl.errors import CannotLook, Refused, VerificationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.journal import Journal, utc_now
from dsv4ctl.knobs import lint_on
from dsv4ctl.launch import Launch
from dsv4ctl.live import LiveView
from dsv4ctl.locks import hold_lock
from dsv4ctl.profile.lookup import reference
from dsv4ctl.restart.acts import Before
from dsv4ctl.restart.agreement import disagreements, settings_of
from dsv4ctl.restart.changes import Change, changes_of
from dsv4ctl.restart.checks import Checked, check_new, gpu_findings, read_gpus_of
from dsv4ctl.restart.conduct import Done, Work, carry_out
from dsv4ctl.restart.evidence import folder_of
from dsv4ctl.restart.gpus import GpuUse
from dsv4ctl.restart.layers import of_role
from dsv4ctl.restart.patch_table import Table, running_table
from dsv4ctl.restart.pending import Pending, PendingStore
from dsv4ctl.restart.plan import Scope, co_restart_plan, plan_rows
from dsv4ctl.restart.router import RouterWorkers
from dsv4ctl.restart.running import Running, router_of
from dsv4ctl.restart.safety import Safety, safety_of
from dsv4ctl.restart.situation import Found, Only, Settings, Situation, look, open_found, stored_sets
from dsv4ctl.restart.traffic import Held, outstanding
from dsv4ctl.restart.view import changes_table, plan_lines, report_rows, show_report, show_workers
from dsv4ctl.serve import ServeContext
from dsv4ctl.signals import Interrupts, interruptible

GRACE_S = 2.0
"""What a drained engine gets to end by itself. SGLang looks only every 5 s whether it was asked to: waiting for that
would keep clients waiting for nothing."""

_HTTP_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Wanted:
    """What the command line says."""

    profile: str | None
    sets: tuple[str, ...]
    unsets: tuple[str, ...]
    role_sets: tuple[str, ...]
    drain_s: float
    only: Only
    rollback: bool
    dry_run: bool
    yes: bool


@dataclass(frozen=True)
class Prepared:
    """All that is known before anything is touched."""

    situation: Situation
    scope: Scope
    checked: Checked
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...]
    held: tuple[Held, ...]
    gpus: Mapping[str, tuple[GpuUse, ...]]
    abort_is_error: bool
    safety: Safety | None


def run_co_restart(console: Console, wanted: Wanted) -> None:
    """Restart prefill and decode of a stack.

    Raises:
        NothingRunning: there is no such stack.
        Refused: a check or the person said no.
        VerificationFailed: the new configuration did not come up, and the old one serves again.
        Dsv4Error: a step failed; the hint names the state.
    """
    settings = Settings((*wanted.sets, *map(of_role, wanted.role_sets)), wanted.unsets)
    with interruptible() as interrupts, open_found(wanted.profile, open_host) as found, ExitStack() as exits:
        console.target = found.name
        locks = []
        if not wanted.dry_run:
            for place in found.fleet.values():
                path = place.store.lock_path(found.name)
                locks.append(exits.enter_context(hold_lock(place.host, path, "co-restart")))
        situation = look(found, settings, wanted.only)
        view = exits.enter_context(LiveView(console))
        prepared = _prepare(console, view, interrupts, situation, wanted)
        _show(console, prepared)
        if wanted.dry_run:
            _print_plan(console, prepared)
            return
        _refuse(prepared, wanted)
        _ask(console, prepared, wanted)

        def ensure() -> None:
            for lock in locks:
                lock.ensure()

        began = time.monotonic()
        done = carry_out(_work(prepared, wanted, interrupts, view, ensure))
        seconds = time.monotonic() - began
    _report(console, prepared, done, seconds)


def _prepare(
    console: Console, view: LiveView, interrupts: Interrupts, situation: Situation, wanted: Wanted
) -> Prepared:
    found, stack = situation.found, situation.stack
    linted = lint_on(
        situation.loaded,
        {name: place.host for name, place in found.fleet.items()},
        {name: place.site.python for name, place in found.fleet.items()},
    )
    for note in linted.notes:
        console.warn(note)
    linted.raise_problems()
    launch = Launch(
        loaded=situation.loaded,
        stack=stack,
        fleet=found.fleet,
        interrupts=interrupts,
        report=view.report,
        on_look=view.look,
        on_finding=console.finding,
        on_trouble=console.warn,
        rng=random.SystemRandom(),
    )
    fresh = {record.name for record in situation.fresh}
    starting = [worker for worker in situation.engines if worker.name not in fresh]
    router = router_of(situation.running)
    silent = router is not None and not _router_answers(found, router)
    checked = check_new(launch, situation.engines, starting, situation.leaving)
    gpus = read_gpus_of(launch, situation.engines)
    ended = {one.name for one in situation.leaving}
    scope = Scope(
        stack=stack,
        engines=situation.engines,
        leaving=tuple(sorted(ended | ({router.name} if silent and router is not None else set()))),
        hosts=tuple(
            dict.fromkeys([*(worker.host for worker in situation.engines), *(r.host for r in situation.leaving)])
        ),
        replace_router=silent,
        drain_s=wanted.drain_s,
        grace_s=GRACE_S,
    )
    tables = {
        one.name: _table_now(found, one) for one in situation.running if one.record.role != "router" and one.alive
    }
    findings = [*checked.findings, *gpu_findings(gpus, situation.engines, situation.running)]
    findings += _agreement_now(found, situation)
    findings += _router_findings(situation, router, silent=silent)
    return Prepared(
        situation=situation,
        scope=scope,
        checked=checked,
        findings=tuple(findings),
        changes=changes_of(situation.running, situation.engines),
        held=outstanding(found.fleet, [w for w in stack.engines if w.name in ended]),
        gpus=gpus,
        abort_is_error=all(
            tables.get(name, {}).get("abort-is-an-error") == "applied" for name in ended if name != "router"
        ),
        safety=_safety(situation, wanted.only, tables),
    )


def _router_answers(found: Found, router: Running) -> bool:
    place = found.fleet[router.host]
    if not router.alive:
        return False
    with place.host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
        url = f"http://{router.record.listen}:{router.record.port}"
        try:
            RouterWorkers(client, url, "the router", time.sleep).listed()
        except CannotLook:
            return False
    return True


def _table_now(found: Found, one: Running) -> Table:
    with found.fleet[one.host].host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
        try:
            return running_table(client, f"http://{one.record.listen}:{one.record.port}")
        except CannotLook:
            return {}


def _agreement_now(found: Found, situation: Situation) -> list[Finding]:
    """How prefill and decode fit together as they run; what is wrong now is a reason to restart, and no refusal."""
    settings = []
    for one in situation.running:
        if one.record.role == "router" or not one.alive:
            continue
        with found.fleet[one.host].host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
            url = f"http://{one.record.listen}:{one.record.port}"
            told = settings_of(client, one.name, one.record.role, url, one.argv)
        if told is not None:
            settings.append(told)
    return [
        replace(finding, severity=Severity.WARNING, message=f"as they run now, {finding.message}")
        for finding in disagreements(settings)
    ]


def _router_findings(situation: Situation, router: Running | None, *, silent: bool) -> list[Finding]:
    if router is None:
        return []
    if silent:
        return [
            Finding(
                "ROUTER_SILENT",
                Severity.WARNING,
                f"the router on {router.host} does not list its workers, so it is started anew as well",
                "nothing to do",
                {"host": router.host, "pid": router.pid},
            )
        ]
    changed = [change for change in changes_of([router], situation.stack.workers) if change.what not in _URLS]
    return [
        Finding(
            "ROUTER_DIFFERS",
            Severity.WARNING,
            f"the router runs on as it is, and would be started otherwise now: {change}",
            "`dsv4ctl stop` and `dsv4ctl serve` start it anew",
            {"what": change.what},
        )
        for change in changed
    ]


_URLS = frozenset({"--prefill", "--decode", "--worker-urls"})


def _safety(situation: Situation, only: Only, tables: Mapping[str, Table]) -> Safety | None:
    if only is None:
        return None
    ended = {one.name for one in situation.leaving}
    staying = [one for one in situation.running if one.record.role not in {"router", only} and one.name not in ended]
    worst: Table = {}
    for one in staying:
        table = tables.get(one.name, {})
        worst = table if not worst else {name: worst[name] for name in worst if worst[name] == table.get(name)}
    version = situation.found.loaded.profile.engine.version
    return safety_of(only, version, worst)


def _show(console: Console, prepared: Prepared) -> None:
    situation = prepared.situation
    if not console.machine:
        show_workers(console, situation, prepared.held)
        changes_table(console, prepared.changes)
    for finding in prepared.findings:
        console.finding(finding)
    if situation.pending is not None:
        pending = situation.pending
        console.warn(
            f"a restart that was begun at {pending.began_at} ended at {pending.step or 'its beginning'}: this goes on "
            "with it"
        )
    if prepared.safety is not None:
        known = "is known to be safe" if prepared.safety.safe else "is not known to be safe"
        console.say(f"restarting {prepared.safety.side} alone {known}: {prepared.safety.why}")


def _print_plan(console: Console, prepared: Prepared) -> None:
    steps = co_restart_plan(prepared.scope, prepared.situation.loaded.profile.canary)
    if not console.machine:
        for line in plan_lines(steps):
            console.say(line)
    console.result(
        {
            "stack": prepared.situation.found.name,
            "applied": False,
            "steps": plan_rows(steps),
            "changes": prepared.changes,
            "requests": prepared.held,
            "safety": prepared.safety,
        }
    )


def _refuse(prepared: Prepared, wanted: Wanted) -> None:
    errors = [finding for finding in prepared.findings if finding.severity is Severity.ERROR]
    if errors:
        raise Refused(
            f"stack {prepared.situation.found.name} was not touched",
            why=f"the new configuration would not come up: {', '.join(sorted({finding.code for finding in errors}))}",
            hint=errors[0].remedy,
        )
    if prepared.safety is not None and not wanted.yes:
        raise Refused(
            f"{prepared.safety.side} was not restarted alone",
            why=prepared.safety.why,
            hint="add --yes to do it, or leave --only out: where both go, neither waits for the other",
        )


def _ask(console: Console, prepared: Prepared, wanted: Wanted) -> None:
    names = ", ".join(worker.name for worker in prepared.situation.engines)
    known = prepared.situation.before is not None
    back = "" if known else " What runs now could not be started again: a secret of it is not known."
    console.confirm(
        f"Restart {names} of stack {prepared.situation.found.name}? "
        f"New requests are refused until they are proven.{back}",
        yes=wanted.yes,
    )


def _work(prepared: Prepared, wanted: Wanted, interrupts: Interrupts, view: LiveView, ensure: object) -> Work:
    situation = prepared.situation
    found, stack, pending = situation.found, situation.stack, situation.pending
    entry = found.fleet[stack.entry.host]
    now = utc_now()
    moment = f"{now:%Y%m%dT%H%M%S}"
    sets = stored_sets(situation.loaded)
    if pending is None:
        pending = Pending(
            stack=found.name,
            began_at=now.isoformat(timespec="seconds"),
            phase="serving",
            step="",
            engines=tuple(worker.name for worker in situation.engines),
            leaving=tuple(one.handle for one in situation.leaving if one.handle is not None),
            sets=sets,
            before_sets=situation.before_sets,
            evidence={host: folder_of(found.fleet[host], found.name, moment) for host in prepared.scope.hosts},
        )
        for place in found.fleet.values():
            here = [worker for worker in situation.before or () if worker.host == place.name]
            PendingStore(place, found.name).save_before(here)
    else:
        pending = Pending(**{**vars(pending), "sets": sets, "engines": tuple(w.name for w in situation.engines)})
    PendingStore(entry, found.name).save(pending)
    context = ServeContext(
        stack=stack,
        canary=situation.loaded.profile.canary,
        fleet=found.fleet,
        interrupts=interrupts,
        rng=random.SystemRandom(),
        on_look=view.look,
        now=utc_now,
        profile_name=reference(situation.loaded.found),
        sets=sets,
        kept={name: record for name, record in situation.kept.items() if name not in prepared.scope.leaving},
    )
    journal = Journal(entry.host, entry.store.journal_directory(found.name), "co-restart")
    journal.write("co-restart", stack=found.name, changes=prepared.changes, requests=prepared.held)
    return Work(
        scope=prepared.scope,
        context=context,
        before=Before(situation.running, prepared.gpus, prepared.abort_is_error, situation.records),
        tables=prepared.checked.tables,
        pending=pending,
        before_workers=situation.before,
        may_roll_back=wanted.rollback,
        journal=journal,
        report=view.report,
        before_step=ensure,  # type: ignore[arg-type]
        say=view.say,
    )


def _report(console: Console, prepared: Prepared, done: Done, seconds: float) -> None:
    pending_evidence = [str(timed.facts["folder"]) for timed in done.timeline if "folder" in timed.facts]
    error = None
    if done.error is not None:
        error = VerificationFailed(
            f"the new configuration did not come up, and stack {prepared.situation.found.name} serves again as before",
            why=str(done.error),
            hint=done.error.hint,
        )
    if not console.machine:
        show_report(console, done, seconds, pending_evidence)
    console.result(
        {
            "stack": prepared.situation.found.name,
            "state": done.state,
            "seconds": round(seconds, 3),
            "downtime_s": done.downtime_s,
            "changes": prepared.changes,
            "evidence": pending_evidence,
            "steps": report_rows(done.timeline),
        },
        error,
    )
    if error is not None:
        raise error
