"""One run of `dsv4ctl co-restart`: recognise, lock, check, show, ask, do, prove, report."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dsv4ctl.console import Console
from dsv4ctl.errors import OperationFailed, Refused, VerificationFailed
from dsv4ctl.findings import Severity
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.journal import Journal, utc_now
from dsv4ctl.live import LiveView
from dsv4ctl.locks import hold_lock
from dsv4ctl.profile.lookup import reference
from dsv4ctl.restart.conduct import Done, Work, carry_out
from dsv4ctl.restart.evidence import folder_of
from dsv4ctl.restart.layers import of_role, refuse_router
from dsv4ctl.restart.pending import Pending, PendingStore
from dsv4ctl.restart.plan import co_restart_plan, plan_rows
from dsv4ctl.restart.prepare import Prepared, prepare
from dsv4ctl.restart.restarting import Before
from dsv4ctl.restart.safety import Safety
from dsv4ctl.restart.situation import Only, Settings, look, open_found, stored_sets
from dsv4ctl.restart.view import changes_table, plan_lines, report_rows, show_report, show_workers
from dsv4ctl.serve import ServeContext
from dsv4ctl.signals import Interrupts, interruptible


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


def run_co_restart(console: Console, wanted: Wanted) -> None:
    """Restart prefill and decode of a stack.

    Raises:
        NothingRunning: there is no such stack.
        Refused: a check or the person said no.
        VerificationFailed: the new configuration did not come up, and the old one serves again.
        Dsv4Error: a step failed; the hint names the state.
    """
    settings = Settings((*wanted.sets, *map(of_role, wanted.role_sets)), wanted.unsets)
    refuse_router(settings.sets)
    with interruptible() as interrupts, open_found(wanted.profile, open_host) as found, ExitStack() as exits:
        console.target = found.name
        locks = []
        if not wanted.dry_run:
            for place in found.fleet.values():
                path = place.store.lock_path(found.name)
                locks.append(exits.enter_context(hold_lock(place.host, path, "co-restart")))
        situation = look(found, settings, wanted.only)
        view = exits.enter_context(LiveView(console))
        prepared = prepare(console, view, interrupts, situation, wanted.drain_s, wanted.only)
        _show(console, prepared)
        if wanted.dry_run:
            _print_plan(console, prepared)
            _refuse_errors(prepared)
            return
        _refuse(prepared, wanted)
        _ask(console, prepared, wanted, interrupts.check)

        def ensure() -> None:
            for lock in locks:
                lock.ensure()

        began = time.monotonic()
        work = _work(prepared, wanted, interrupts, view, ensure)
        done = carry_out(work)
        if _is_way_back(prepared, wanted) and done.state == "restarted":
            given_up = "its new configuration did not come up, and an earlier run had begun to go back"
            done = replace(done, state="rolled back", error=OperationFailed(given_up))
        seconds = time.monotonic() - began
    _report(console, prepared, done, work.pending.evidence, seconds)


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
        if pending.phase == "rolling back":
            console.warn("its new configuration did not come up and was given up: this goes back to what ran before")
    for key in situation.useless:
        console.warn(f"--unset {key}: nothing sets it")
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
    _refuse_errors(prepared)
    if prepared.safety is not None and not wanted.yes:
        raise Refused(
            f"{prepared.safety.side} was not restarted alone",
            why=f"one side alone takes --yes, also where it is known to work. Here it {_known(prepared.safety)}",
            hint="add --yes to do it, or leave --only out: where both go, neither waits for the other",
        )


def _known(safety: Safety) -> str:
    return f"{'is' if safety.safe else 'is not'} known to work: {safety.why}"


def _refuse_errors(prepared: Prepared) -> None:
    errors = [finding for finding in prepared.findings if finding.severity is Severity.ERROR]
    if errors:
        raise Refused(
            f"stack {prepared.situation.found.name} was not touched",
            why=f"the new configuration would not come up: {', '.join(sorted({finding.code for finding in errors}))}",
            hint=errors[0].remedy,
        )


def _ask(console: Console, prepared: Prepared, wanted: Wanted, check: Callable[[], None]) -> None:
    names = ", ".join(worker.name for worker in prepared.situation.engines)
    known = prepared.situation.before is not None
    back = "" if known else " What runs now could not be started again: a secret of it is not known."
    console.confirm(
        f"Restart {names} of stack {prepared.situation.found.name}? "
        f"New requests are refused until they are proven.{back}",
        yes=wanted.yes,
        check=check,
    )


def _work(
    prepared: Prepared, wanted: Wanted, interrupts: Interrupts, view: LiveView, ensure: Callable[[], None]
) -> Work:
    situation = prepared.situation
    found, stack, pending = situation.found, situation.stack, situation.pending
    entry = found.fleet[stack.entry.host]
    now = utc_now()
    moment = f"{now:%Y%m%dT%H%M%S}"
    sets = stored_sets(situation.loaded)
    leaving = tuple(one.handle for one in situation.leaving if one.handle is not None)
    evidence = {host: folder_of(found.fleet[host], found.name, moment) for host in prepared.scope.evidence_hosts}
    if pending is None:
        pending = Pending(
            stack=found.name,
            began_at=now.isoformat(timespec="seconds"),
            phase="serving",
            step="",
            engines=tuple(worker.name for worker in situation.engines),
            leaving=leaving,
            sets=sets,
            before_sets=situation.before_sets,
            evidence=evidence,
        )
        for place in found.fleet.values():
            here = [worker for worker in situation.before or () if worker.host == place.name]
            PendingStore(place, found.name).save_before(here)
    else:
        pending = replace(
            pending,
            sets=sets,
            engines=tuple(worker.name for worker in situation.engines),
            leaving=tuple(dict.fromkeys((*pending.leaving, *leaving))),
            evidence={**evidence, **pending.evidence},
        )
    PendingStore(entry, found.name).save(pending)
    context = ServeContext(
        stack=stack,
        canary=situation.loaded.profile.canary,
        fleet=found.fleet,
        interrupts=interrupts,
        rng=random.SystemRandom(),
        on_look=view.look,
        now=utc_now,
        profile_name=found.ref or reference(situation.loaded.found),
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
        before_step=ensure,
        say=view.say,
    )


def _is_way_back(prepared: Prepared, wanted: Wanted) -> bool:
    """Whether this run only goes on with the way back of one that was cut off."""
    pending = prepared.situation.pending
    changes = (*wanted.sets, *wanted.role_sets, *wanted.unsets)
    return pending is not None and pending.phase == "rolling back" and not changes


def _report(console: Console, prepared: Prepared, done: Done, evidence: Mapping[str, str], seconds: float) -> None:
    kept = {timed.step.host for timed in done.timeline if timed.step.id.startswith("evidence:")}
    folders = [folder for host, folder in evidence.items() if host in kept]
    error = done.error
    if error is not None and done.state == "rolled back":
        error = VerificationFailed(
            f"the new configuration did not come up, and stack {prepared.situation.found.name} serves again as before",
            why=str(error),
            hint=error.hint,
        )
    if not console.machine:
        show_report(console, done, seconds, folders)
    console.result(
        {
            "stack": prepared.situation.found.name,
            "state": done.state,
            "seconds": round(seconds, 3),
            "downtime_s": done.downtime_s,
            "changes": prepared.changes,
            "evidence": folders,
            "steps": report_rows(done.timeline),
        },
        error,
    )
    if error is not None:
        raise error
