"""One launch from beginning to end: look, lock, check, carry out the plan, and clean up if it fails."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from dsv4ctl.doctor.quick import quick_findings
from dsv4ctl.errors import CannotLook, Dsv4Error, Refused
from dsv4ctl.facts import HostFacts, read_facts, with_memory
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.fleet import Fleet
from dsv4ctl.gpu_indices import IndexMemory, check_indices
from dsv4ctl.journal import Diary, Journal, utc_now
from dsv4ctl.locks import HeldLock, hold_lock
from dsv4ctl.observe import WorkerView
from dsv4ctl.plan import Outcome, Timed, execute
from dsv4ctl.preflight import (
    check_disk,
    check_engine,
    check_memory,
    check_model,
    check_numactl,
    check_ports,
    check_strays,
    gpus_changed,
)
from dsv4ctl.procfs import commands_of, listeners, marked_processes, memory_of
from dsv4ctl.profile.keys import Problem, ProfileError
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.profile.lookup import reference
from dsv4ctl.restart.layers import redacted
from dsv4ctl.serve import ServeContext, Serving
from dsv4ctl.serve_plan import serve_plan
from dsv4ctl.signals import Interrupts
from dsv4ctl.stack import UNIT_VARIABLE, Stack
from dsv4ctl.state import StackRecord
from dsv4ctl.stop import Stopping, stop_plan
from dsv4ctl.supervisors.base import UnitState

CLEAN_UP_GRACE_S = 3.0
PREFLIGHT_CODES = frozenset({"PORT_TAKEN", "STRAY_PROCESSES", "DISK_LOW"})
"""What `preflight` looks at itself."""

_GIB = 1024**3

Look = Callable[[Sequence[WorkerView]], None]


@dataclass(frozen=True)
class Launch:
    """What a launch needs from outside: the loaded profile, its stack, its hosts, and whom to tell."""

    loaded: LoadedProfile
    stack: Stack
    fleet: Fleet
    interrupts: Interrupts
    report: Outcome
    on_look: Look
    on_finding: Callable[[Finding], None]
    on_trouble: Callable[[str], None]
    rng: random.Random
    now: Callable[[], datetime] = utc_now


@dataclass(frozen=True)
class Launched:
    """A stack that was brought up and proven. The caller closes `serving.watch`."""

    serving: Serving
    timeline: tuple[Timed, ...]


def launch(work: Launch) -> Launched:
    """Bring the stack up. Whatever fails, what was started is ended again before the error goes on.

    Raises:
        Refused: a precheck says no, or another dsv4ctl is at work on this stack.
        ProfileError: the profile asks for something that a host does not have.
        CannotLook: the GPUs of a host are not those for which the plan was made, or could not be looked at.
        Dsv4Error: a step failed; nothing is left, unless the error's hint says otherwise.
    """
    with ExitStack() as exits:
        paths = [(place.host, place.store.lock_path(work.stack.name)) for place in work.fleet.values()]
        locks = [exits.enter_context(hold_lock(host, path, "serve")) for host, path in paths]
        facts = look_at_hosts(work)
        clear_ended(work)
        check_cards(work, facts)
        findings = (
            *preflight(work, facts),
            *quick_findings(work.loaded.profile, work.fleet, work.stack, without=PREFLIGHT_CODES),
        )
        for finding in findings:
            work.on_finding(finding)
        refusals = [finding for finding in findings if finding.severity is Severity.ERROR]
        if refusals:
            raise Refused(
                f"stack {work.stack.name} was not started",
                why=f"the prechecks say no: {', '.join(sorted({finding.code for finding in refusals}))}",
                hint=refusals[0].remedy,
            )
        return _carry_out(work, locks)


def _carry_out(work: Launch, locks: Sequence[HeldLock]) -> Launched:
    entry = work.fleet[work.stack.entry.host]
    journal = Journal(entry.host, entry.store.journal_directory(work.stack.name), "serve", now=work.now)
    canary = work.loaded.profile.canary
    serving = Serving(
        ServeContext(
            stack=work.stack,
            canary=canary,
            fleet=work.fleet,
            interrupts=work.interrupts,
            rng=work.rng,
            on_look=work.on_look,
            now=work.now,
            profile_name=reference(work.loaded.found),
            sets=redacted(work.loaded.sets),
        )
    )

    def hold_all() -> None:
        for lock in locks:
            lock.ensure()

    try:
        journal.write("serve", stack=work.stack.name, profile=work.loaded.found.shown)
        serving.begin()
        timeline = execute(
            serve_plan(work.stack, canary),
            serving.action_for,
            journal=journal,
            interrupts=work.interrupts,
            report=work.report,
            before_step=hold_all,
        )
        serving.note_ready()
        journal.write("ready")
    except BaseException as error:
        # A fault of our own must not leave a stack behind either.
        serving.watch.close()
        grace = 0.0 if isinstance(error, KeyboardInterrupt) else CLEAN_UP_GRACE_S
        clean_up(work, serving.records, error, grace)
        raise
    return Launched(serving, timeline)


def clean_up(work: Launch, records: dict[str, StackRecord], error: BaseException, grace_s: float) -> None:
    """End what was started, after `error`. If that fails too, `error` gets a hint that says what is left."""
    work.interrupts.acknowledge()
    try:
        end_stack(
            work.fleet,
            tuple(records.items()),
            grace_s=grace_s,
            report=work.report,
            interrupts=work.interrupts,
            on_trouble=work.on_trouble,
            now=work.now,
        )
    except Dsv4Error as second:
        if isinstance(error, Dsv4Error):
            error.hint = f"cleaning up failed as well ({second}): see `dsv4ctl status`, then `dsv4ctl stop`"


def end_stack(
    fleet: Fleet,
    records: Sequence[tuple[str, StackRecord]],
    *,
    grace_s: float,
    report: Outcome,
    interrupts: Interrupts,
    on_trouble: Callable[[str], None],
    now: Callable[[], datetime] = utc_now,
) -> tuple[Timed, ...]:
    """Carry out the plan that ends a stack. Another Ctrl-C meanwhile ends it without any grace.

    Its journal is a diary: when the disk is full the stack is ended all the same, and `on_trouble` is told.

    Raises:
        VerificationFailed: something is left.
        HostUnreachable
    """
    name, record = records[0]
    place = fleet[name]
    journal = Diary(Journal(place.host, place.store.journal_directory(record.stack), "stop", now=now), on_trouble)
    stopping = Stopping(fleet, records, sleep=interrupts.sleep)

    def carry_out(grace: float) -> tuple[Timed, ...]:
        plan = stop_plan(records, grace)
        return execute(plan, stopping.action_for, journal=journal, interrupts=interrupts, report=report)

    try:
        return carry_out(grace_s)
    except KeyboardInterrupt:
        if grace_s == 0.0:
            raise
        return carry_out(0.0)


def clear_ended(work: Launch) -> None:
    """Refuse to start beside a living stack of the same name; clear away one that ended without us.

    Raises:
        Refused: it runs, or a part of it.
        VerificationFailed: what it left could not be removed.
    """
    ended: list[tuple[str, StackRecord]] = []
    for name, place in work.fleet.items():
        record = place.store.load(work.stack.name)
        known = {worker.unit: worker.handle for worker in record.workers} if record is not None else {}
        handles = {
            worker.name: known.get(worker.unit) or place.supervisor.find(worker.unit) for worker in work.stack.on(name)
        }
        running = [
            f"{worker} (pid {status.main_pid})"
            for worker, handle in handles.items()
            if handle is not None and (status := place.supervisor.status(handle)).state is UnitState.RUNNING
        ]
        if running:
            how = "runs already" if len(running) == len(handles) else "runs in part"
            raise Refused(
                f"stack {work.stack.name} {how} on {name}: {', '.join(running)}",
                why=None if record else "its record in the state directory is gone; its units are still known",
                hint="see `dsv4ctl status`; `dsv4ctl stop` ends it",
            )
        if record is not None:
            ended.append((name, record))
    if ended:
        end_stack(
            work.fleet,
            ended,
            grace_s=CLEAN_UP_GRACE_S,
            report=work.report,
            interrupts=work.interrupts,
            on_trouble=work.on_trouble,
            now=work.now,
        )


def look_at_hosts(work: Launch) -> dict[str, HostFacts]:
    """What every host is, once it is known to have what the profile names.

    Raises:
        ProfileError: the profile names an interpreter, a NUMA node, a GPU or a model that a host does not have.
        HostUnreachable
    """
    facts = read_hosts(work)
    if problems := unfit(work, facts):
        raise ProfileError(problems)
    return facts


def read_hosts(work: Launch) -> dict[str, HostFacts]:
    """What every host is.

    Raises:
        HostUnreachable
    """
    models = {model.host: model.path for model in work.stack.models}
    return {
        name: read_facts(
            place.host, state_root=place.site.state_root, model_path=models.get(name, ""), python=place.site.python
        )
        for name, place in work.fleet.items()
    }


def unfit(work: Launch, facts: Mapping[str, HostFacts]) -> list[Problem]:
    """What the profile names and a host does not have: an interpreter, a NUMA node, a GPU, a model."""
    problems: list[Problem] = []
    models = {model.host: model for model in work.stack.models}
    for name, place in work.fleet.items():
        model, site = models.get(name), place.site
        problems += work.loaded.host_problems(name, facts[name])
        if not facts[name].has_python:
            origin = work.loaded.origin("engine", "python")
            problems.append(Problem(origin, "engine.python", f"is wrong: there is no program {site.python} on {name}"))
        if model is not None and (wrong := check_model(model, facts[name])):
            problems.append(Problem(work.loaded.origin("model", "path"), "model.path", f"is wrong: {wrong}"))
    return problems


def check_cards(work: Launch, facts: Mapping[str, HostFacts]) -> None:
    """That the GPUs of every host are those for which the plan was made.

    Raises:
        CannotLook: they are others, or one of the two looks at them failed.
    """
    for name in work.fleet:
        workers = work.stack.on(name)
        if (unseen := facts[name].gpus_unseen) and any(worker.gpus for worker in workers):
            raise CannotLook(
                f"the GPUs of {name} could not be looked at",
                why=unseen,
                hint="see what `nvidia-smi` says there; a driver without persistence mode is slow to answer "
                "(`nvidia-smi -pm 1`)",
            )
        if changed := gpus_changed(name, workers, facts[name].gpus):
            raise CannotLook(changed, hint="run it again; `nvidia-smi` there says whether a card comes and goes")


def preflight(
    work: Launch, facts: Mapping[str, HostFacts], *, leaving: Mapping[str, Collection[int]] | None = None
) -> tuple[Finding, ...]:
    """What the present state of every host says against starting, and what a person should know. `leaving` are the
    processes of a host that will have ended by then: their ports and their memory will be free.

    Raises:
        HostUnreachable
    """
    findings: list[Finding] = []
    profile = work.loaded.profile
    size = int(profile.model.size_gb * _GIB) if profile.model.size_gb else None
    for name, place in work.fleet.items():
        workers = work.stack.on(name)
        gone = (leaving or {}).get(name, ())
        held = [listener for listener in listeners(place.host) if not set(listener.pids) & set(gone)]
        ours = {port for worker in workers for port in worker.ports.values()}
        commands = commands_of(place.host, held, ours)
        findings += check_engine(name, place.site.python, profile.engine.version, facts[name])
        units = marked_processes(place.host, UNIT_VARIABLE)
        own = {worker.unit for worker in workers}
        findings += check_ports(workers, held, commands, units)
        findings += check_strays(name, {pid: unit for pid, unit in units.items() if unit in own and pid not in gone})
        findings += check_indices(name, workers, facts[name].gpus, IndexMemory(place, work.stack.name))
        findings += check_numactl(name, workers, facts[name])
        findings += check_memory(work.stack, name, with_memory(facts[name], memory_of(place.host, gone)), size)
        findings += check_disk(name, place.site.state_root, facts[name])
    return tuple(findings)
