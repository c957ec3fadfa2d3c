"""Before anything is touched: what a restart hangs on, what the new configuration would come to, and what is known."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsv4ctl.console import Console
from dsv4ctl.doctor.quick import quick_findings
from dsv4ctl.errors import CannotLook
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.knobs import lint_on
from dsv4ctl.launch import PREFLIGHT_CODES, Launch
from dsv4ctl.live import LiveView
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.restart.agreement import Settings, by_argv, disagreements, settings_of, settings_of_argv
from dsv4ctl.restart.changes import Change, changes_of
from dsv4ctl.restart.checks import Checked, check_new, gpu_findings, read_gpus_of
from dsv4ctl.restart.gpus import GpuUse
from dsv4ctl.restart.patch_table import DoesNotAnswer, Table, running_table, tells
from dsv4ctl.restart.plan import Scope
from dsv4ctl.restart.restarting import ABORT_PATCH
from dsv4ctl.restart.router import RouterWorkers
from dsv4ctl.restart.running import Running, router_of, where_they_run
from dsv4ctl.restart.safety import Safety, safety_of
from dsv4ctl.restart.situation import Found, Only, Situation
from dsv4ctl.restart.traffic import Held, outstanding
from dsv4ctl.signals import Interrupts
from dsv4ctl.stack import Worker, build_stack

GRACE_S = 2.0
"""What a drained engine gets to end by itself. SGLang looks only every 5 s whether it was asked to: waiting for that
would keep clients waiting for nothing."""

_HTTP_TIMEOUT_S = 3.0


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


def prepare(
    console: Console, view: LiveView, interrupts: Interrupts, situation: Situation, drain_s: float, only: Only
) -> Prepared:
    """Look at everything that a restart hangs on, and check the new configuration. Nothing is changed.

    Raises:
        ProfileError: the new configuration names something that the engine or a host does not have.
        HostUnreachable
    """
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
    silent = router is not None and not _router_answers(found, router, interrupts)
    anew = [worker for worker in stack.workers if silent and router is not None and worker.name == router.name]
    gone = (*situation.leaving, router) if silent and router is not None else situation.leaving
    checked = check_new(launch, situation.engines, [*starting, *anew], gone)
    gpus = read_gpus_of(launch, situation.engines)
    # Also what has died: the supervisor still keeps a record of it.
    ended = {
        one.name
        for one in situation.running
        if one.record.role != ROUTER and only in (None, one.record.role) and one.name not in fresh
    }
    scope = Scope(
        stack=stack,
        engines=situation.engines,
        leaving=tuple(sorted(ended | ({router.name} if silent and router is not None else set()))),
        hosts=tuple(
            dict.fromkeys([*(worker.host for worker in (*situation.engines, *anew)), *(one.host for one in gone)])
        ),
        replace_router=silent,
        drain_s=drain_s,
        grace_s=GRACE_S,
    )
    interrupts.check()
    tables, silent_engines = _tables_now(found, situation.running, interrupts)
    findings = [*linted.findings, *checked.findings, *gpu_findings(gpus, situation.engines, situation.running)]
    findings += _of_the_boxes(situation)
    interrupts.check()
    findings += _agreement_now(found, situation, silent_engines)
    findings += _agreement_with_the_other_side(situation, only)
    findings += [
        _unseen_patches(worker) for worker in situation.engines if checked.tables.get(worker.name) and not tells(worker)
    ]
    findings += _router_findings(situation, router, silent=silent)
    return Prepared(
        situation=situation,
        scope=scope,
        checked=checked,
        findings=tuple(findings),
        changes=changes_of(situation.running, situation.engines),
        held=outstanding(found.fleet, where_they_run(stack.engines, situation.leaving)),
        gpus=gpus,
        abort_is_error=all(tables.get(one.name, {}).get(ABORT_PATCH) == "applied" for one in situation.leaving),
        safety=_safety(situation, only, tables),
    )


def _router_answers(found: Found, router: Running, interrupts: Interrupts) -> bool:
    place = found.fleet[router.host]
    if not router.alive:
        return False
    with place.host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
        url = f"http://{router.record.listen}:{router.record.port}"
        try:
            RouterWorkers(client, url, "the router", interrupts.sleep).listed()
        except CannotLook:
            return False
    return True


def _tables_now(
    found: Found, running: Sequence[Running], interrupts: Interrupts
) -> tuple[dict[str, Table], frozenset[str]]:
    """The patches of every engine that is alive, by its name, and which of them do not answer: who has waited for one
    once need not do so again."""
    tables: dict[str, Table] = {}
    silent: set[str] = set()
    for one in running:
        if one.record.role == ROUTER or not one.alive:
            continue
        interrupts.check()
        with found.fleet[one.host].host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
            try:
                tables[one.name] = running_table(client, f"http://{one.record.listen}:{one.record.port}")
            except DoesNotAnswer:
                silent.add(one.name)
            except CannotLook:
                tables[one.name] = {}
    return tables, frozenset(silent)


def _of_the_boxes(situation: Situation) -> list[Finding]:
    """What a start would be told of its hosts. What stands against one, and did when this stack was started, is no
    reason to leave it as it is."""

    def told(loaded: LoadedProfile) -> tuple[Finding, ...]:
        stack = build_stack(loaded, {name: place.site for name, place in fleet.items()})
        # Who else uses the GPUs is told by what is known of the running workers (`gpu_findings`).
        return quick_findings(loaded.profile, fleet, stack, without=PREFLIGHT_CODES | {"GPU_SHARED"})

    fleet = situation.found.fleet
    new = told(situation.loaded)
    if not any(finding.severity is Severity.ERROR for finding in new):
        return list(new)
    before = {(finding.code, finding.message) for finding in told(situation.found.loaded)}
    return [
        replace(finding, severity=Severity.WARNING)
        if finding.severity is Severity.ERROR and (finding.code, finding.message) in before
        else finding
        for finding in new
    ]


def _agreement_now(found: Found, situation: Situation, silent: frozenset[str]) -> list[Finding]:
    """How prefill and decode fit together as they run; what is wrong now is a reason to restart, and no refusal."""
    settings = []
    for one in situation.running:
        if one.record.role == ROUTER or not one.alive:
            continue
        if one.name in silent:
            told = settings_of_argv(one.name, one.record.role, one.argv)
        else:
            with found.fleet[one.host].host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
                url = f"http://{one.record.listen}:{one.record.port}"
                told = settings_of(client, one.name, one.record.role, url, one.argv)
        if told is not None:
            settings.append(told)
    return [
        replace(finding, severity=Severity.WARNING, message=f"as they run now, {finding.message}")
        for finding in disagreements(settings)
    ]


def _agreement_with_the_other_side(situation: Situation, only: Only) -> list[Finding]:
    """How the new side will fit to the one that runs on as it is, whatever the plan has for that."""
    if only is None:
        return []
    new = [Settings(worker.name, worker.role, "the plan", by_argv(worker.argv)) for worker in situation.engines]
    stays = [
        Settings(one.name, one.record.role, "its command line", by_argv(one.argv))
        for one in situation.running
        if one.record.role not in {ROUTER, only} and one.argv is not None
    ]
    return list(disagreements([*new, *stays]))


def _unseen_patches(worker: Worker) -> Finding:
    return Finding(
        "PATCHES_UNSEEN",
        Severity.WARNING,
        f"{worker.name} on {worker.host} will not say which patches it applied: it has no --enable-metrics",
        "set args.enable-metrics = true in the profile",
        {"worker": worker.name, "host": worker.host},
    )


def _router_findings(situation: Situation, router: Running | None, *, silent: bool) -> list[Finding]:
    if router is None:
        return []
    if silent:
        return [
            Finding(
                "ROUTER_SILENT",
                Severity.WARNING,
                f"the router on {router.host} (pid {router.pid}) does not list its workers"
                if router.alive
                else f"the router on {router.host} is not running",
                "this restart starts it anew as well; `dsv4ctl logs router` says why",
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
    staying = [one for one in situation.running if one.record.role not in {ROUTER, only} and one.name not in ended]
    worst: Table = {}
    for one in staying:
        table = tables.get(one.name, {})
        worst = table if not worst else {name: worst[name] for name in worst if worst[name] == table.get(name)}
    version = situation.found.loaded.profile.engine.version
    return safety_of(only, version, worst)
