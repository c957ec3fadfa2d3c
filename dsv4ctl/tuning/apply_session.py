"""One run of `tune-timeout --apply` or `--undo`: look, check the chain, show what changes, ask, change, watch, keep."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.chain import read_chain
from dsv4ctl.console import Column
from dsv4ctl.doctor.timer_order import unread_findings
from dsv4ctl.errors import ExitCode, Refused, UsageError
from dsv4ctl.journal import Journal, utc_now
from dsv4ctl.live import LiveView
from dsv4ctl.locks import hold_lock
from dsv4ctl.plan import Facts, execute
from dsv4ctl.profile.here import load_here, working_directory
from dsv4ctl.profile.rewriting import Rewrite, put_back, set_value, write
from dsv4ctl.profile.schema import Role
from dsv4ctl.restart.plan import plan_rows
from dsv4ctl.restart.view import plan_lines, report_rows
from dsv4ctl.timers import broken
from dsv4ctl.tuning.applied import Applied, AppliedStore
from dsv4ctl.tuning.apply_plan import Change, apply_plan
from dsv4ctl.tuning.applying import ApplyAction, Applying, taking_back
from dsv4ctl.tuning.control import PrefillEngine, prefill_engines, standing
from dsv4ctl.tuning.fires import FALSE_ALARM
from dsv4ctl.tuning.recommend import DAY_S, Cost, of_timeout, with_timeout
from dsv4ctl.tuning.since_start import cost_since_start, read_since_start

if TYPE_CHECKING:
    from dsv4ctl.console import Console
    from dsv4ctl.signals import Interrupts
    from dsv4ctl.targets import Target

COMMAND = "tune-timeout"
VARIABLE = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"
_SHORTEST_SOAK_S, _LONGEST_SOAK_S = 60.0, 600.0
_CHANGES = (Column("worker"), Column("host"), Column("in force", right=True), Column("then", right=True))


@dataclass(frozen=True)
class Asked:
    """What the command line says. `seconds` None: what the evidence of a window recommends. `soak_s` None: long enough
    to see what the timeout ends."""

    profile: str | None
    seconds: float | None
    soak_s: float | None
    yes: bool
    dry_run: bool


@dataclass(frozen=True)
class Recommended:
    """A timeout that is recommended, with its cost, and all that it was computed from, for programs."""

    cost: Cost
    document: Mapping[str, object]


Recommend = Callable[[], Recommended | None]
"""Measures and shows; None where there is too little evidence, which it has said."""


def apply(
    console: "Console", target: "Target", interrupts: "Interrupts", asked: Asked, recommend: Recommend
) -> ExitCode:
    """Set a timeout on all prefill engines without a restart, watch it, make it last, and write it into the profile.

    Returns OK, or INCONCLUSIVE where the evidence recommends nothing.

    Raises:
        Refused: the chain of timers would be broken, something else is in force than was read, or the person said no.
        VerificationFailed: the watchdog fired more than predicted, and all is as before.
        Interrupted, CannotLook, OperationFailed, HostUnreachable
    """
    with ExitStack() as exits:
        if not asked.dry_run:
            _lock(exits, target, "--apply")
        engines = exits.enter_context(prefill_engines(target))
        before_s = standing(engines)
        if asked.seconds is None:
            evidence = recommend()
            if evidence is None:
                return ExitCode.INCONCLUSIVE
            seconds, cost = evidence.cost.seconds, evidence.cost
        else:
            evidence, seconds = None, asked.seconds
            cost = _cost(target, engines, seconds)
            _check_chain(console, target, seconds)
        rewrite, why_not = _in_profile(asked.profile, target, seconds)
        entry = target.records[0][0]
        change = Change(
            timeout_s=seconds,
            before_s=before_s,
            hosts={engine.worker: engine.host for engine in engines},
            entry=entry,
            soak_s=_soak_s(seconds) if asked.soak_s is None else asked.soak_s,
            expected_per_s=cost.per_day / DAY_S,
            file=str(rewrite.path) if rewrite is not None and rewrite.changes else None,
        )
        steps = apply_plan(change)
        _show(console, change, cost, rewrite, why_not)
        document = {
            "stack": target.name,
            "timeout_s": seconds,
            "before_s": before_s,
            "expected_fires": change.expected,
            "allowed_fires": change.allowed,
            "profile": None if rewrite is None else str(rewrite.path),
            "profile_diff": [] if rewrite is None else list(rewrite.diff),
            "not_in_profile": why_not or None,
            "evidence": None if evidence is None else evidence.document,
        }
        if not change.workers and change.file is None and _is_planned(target, seconds):
            console.say("nothing changes")
            console.result({**document, "applied": False, "steps": []})
            return ExitCode.OK
        if asked.dry_run:
            if not console.machine:
                for line in plan_lines(steps):
                    console.say(line)
            console.result({**document, "applied": False, "steps": plan_rows(steps)})
            return ExitCode.OK
        names = ", ".join(change.workers) or "the profile"
        console.confirm(f"Set {seconds:g} s for {names}?", yes=asked.yes, check=interrupts.check)
        place = target.fleet[entry]
        work = _work(change, engines, interrupts, target, rewrite)
        journal = Journal(place.host, place.store.journal_directory(target.name), COMMAND)
        journal.write("apply", stack=target.name, before_s=before_s, timeout_s=seconds, soak_s=change.soak_s)
        with LiveView(console) as view, taking_back(work, console.warn):
            timeline = execute(
                steps,
                lambda step: ApplyAction(work, step),
                journal=journal,
                interrupts=interrupts,
                report=view.report,
            )
        if not console.machine:
            where = f", and in {rewrite.where}" if change.file is not None and rewrite is not None else ""
            console.say(f"{seconds:g} s is in force on {', '.join(before_s)}{where}; --undo takes it back")
        console.result({**document, "applied": True, "steps": report_rows(timeline)})
    return ExitCode.OK


def undo(console: "Console", target: "Target", interrupts: "Interrupts", asked: Asked) -> ExitCode:
    """Take the last change back: on the engines, and in the profile.

    Raises:
        NothingRunning, Refused: nothing was changed, or something else is in force than was set.
        CannotLook, OperationFailed, HostUnreachable
    """
    with ExitStack() as exits:
        if not asked.dry_run:
            _lock(exits, target, "--undo")
        entry = target.records[0][0]
        place = target.fleet[entry]
        store = AppliedStore(place, target.name)
        remembered = store.load()
        if not remembered:
            raise Refused(
                f"nothing is known on {place.name} that tune-timeout has changed of stack {target.name}",
                hint="`--apply SECONDS` sets a timeout",
            )
        last = remembered[-1]
        engines = exits.enter_context(prefill_engines(target))
        now_s = standing(engines)
        back = {worker: seconds for worker, seconds in last.before_s.items() if now_s.get(worker) != seconds}
        if others := [worker for worker in back if now_s.get(worker) != last.timeout_s]:
            said = ", ".join(
                f"{worker} has {now_s[worker]:g} s" if worker in now_s else f"{worker} is not there"
                for worker in others
            )
            raise Refused(
                f"the change of {last.at} to {last.timeout_s:g} s is not undone: {said}",
                why="it was changed since",
                hint="`--apply SECONDS` sets what you want",
            )
        rewrite = _back_in_profile(console, last)
        if not console.machine:
            hosts = {engine.worker: engine.host for engine in engines}
            rows = [
                [worker, hosts[worker], f"{last.timeout_s:g} s", f"{seconds:g} s"] for worker, seconds in back.items()
            ]
            if rows:
                console.table(_CHANGES, rows)
            for line in rewrite.diff if rewrite is not None else ():
                console.data(line)
        document = {"stack": target.name, "undone": last, "engines": back}
        if asked.dry_run:
            console.result({**document, "applied": False})
            return ExitCode.OK
        console.confirm(f"Undo the change of {last.at} to {last.timeout_s:g} s?", yes=asked.yes, check=interrupts.check)
        journal = Journal(place.host, place.store.journal_directory(target.name), COMMAND)
        journal.write("undo", stack=target.name, engines=back, change=asdict(last))
        for engine in engines:
            if engine.worker in back:
                engine.put(back[engine.worker], was_s=last.timeout_s)
        _plan(target, last.planned)
        if rewrite is not None:
            write(rewrite)
        store.save(remembered[:-1])
        journal.write("undone")
        if not console.machine:
            words = [f"{worker}: {seconds:g} s" for worker, seconds in last.before_s.items()]
            console.say(f"as before again: {', '.join(words) or 'the profile'}")
        console.result({**document, "applied": True})
    return ExitCode.OK


def _soak_s(timeout_s: float) -> float:
    """What a timeout ends has been in the queue for so long: the first of it is seen no earlier."""
    return max(_SHORTEST_SOAK_S, min(2 * timeout_s, _LONGEST_SOAK_S))


def _cost(target: "Target", engines: Sequence[PrefillEngine], seconds: float) -> Cost:
    """What a timeout that a person names costs; one of 0 ends nothing."""
    return cost_since_start(seconds, read_since_start(target, engines)) if seconds else Cost(0.0, 0, 0.0, 0.0)


def _check_chain(console: "Console", target: "Target", seconds: float) -> None:
    chain = read_chain(target)
    for finding in unread_findings(chain.unread):
        console.finding(finding)
    if seconds and (pairs := of_timeout(broken(with_timeout(chain.timers, seconds)))):
        raise Refused(
            f"a timeout of {seconds:g} s breaks the chain of timers",
            why="; ".join(map(str, pairs)),
            hint="take one between these two, or change the other timer in the profile and `dsv4ctl co-restart`",
        )


def _lock(exits: ExitStack, target: "Target", what: str) -> None:
    for place in target.fleet.values():
        exits.enter_context(hold_lock(place.host, place.store.lock_path(target.name), f"{COMMAND} {what}"))


def _in_profile(ref: str | None, target: "Target", seconds: float) -> tuple[Rewrite | None, str]:
    """What has to be changed in the profile's file, or why it is left as it is."""
    record = target.records[0][1]
    named = ref if target.stack is not None else record.profile
    if not named and target.stack is None:
        return None, f"the profile of {target.name} is not known here"
    try:
        loaded = load_here(named, record.sets)
        return set_value(
            loaded.found, VARIABLE, seconds, role=Role.PREFILL, cwd=working_directory(), sets=record.sets
        ), ""
    except (Refused, UsageError) as error:
        hint = f": {error.hint}" if error.hint else ""
        return None, f"{error}{hint}"


def _back_in_profile(console: "Console", last: Applied) -> Rewrite | None:
    if last.profile is None:
        return None
    try:
        return put_back(load_here(last.profile).found, last.changes, cwd=working_directory())
    except (Refused, UsageError) as error:
        console.warn(f"the profile is left as it is: {error}")
        return None


def _work(
    change: Change,
    engines: Sequence[PrefillEngine],
    interrupts: "Interrupts",
    target: "Target",
    rewrite: Rewrite | None,
) -> Applying:
    store = AppliedStore(target.fleet[change.entry], target.name)
    before = store.load()
    planned = _planned(target)
    written = rewrite if rewrite is not None and rewrite.changes else None

    def remember() -> None:
        now = Applied(
            at=utc_now().isoformat(timespec="seconds"),
            timeout_s=change.timeout_s,
            before_s={worker: change.before_s[worker] for worker in change.workers},
            planned=planned,
            profile=None if written is None else str(written.path),
            changes=() if written is None else written.changes,
        )
        store.save((*before, now))

    def put_down() -> Facts:
        assert written is not None
        write(written)
        return {"file": str(written.target), "diff": list(written.diff)}

    return Applying(
        change=change,
        engines=engines,
        sleep=interrupts.sleep,
        remember=remember,
        forget=lambda: store.save(before),
        record=lambda: _plan(target, dict.fromkeys(planned, text_of(change.timeout_s))),
        unrecord=lambda: _plan(target, planned),
        write=put_down,
    )


def _is_planned(target: "Target", seconds: float) -> bool:
    """Whether the records say so already."""
    return all(text == text_of(seconds) for text in _planned(target).values())


def text_of(seconds: float) -> str:
    """A timeout as an environment has it; it is rounded to milliseconds where it is asked for."""
    return f"{seconds:.10g}"


def _planned(target: "Target") -> dict[str, str | None]:
    """What the records say of each prefill worker; None where they say nothing."""
    return {
        worker.name: worker.env.get(VARIABLE)
        for _, record in target.records
        for worker in record.workers
        if worker.role == Role.PREFILL.value
    }


def _plan(target: "Target", planned: Mapping[str, str | None]) -> None:
    """Have the records of these workers say what the profile says: what is planned is compared with what runs."""
    for host, known in target.records:
        # Another act may have written it between our first look at it and our lock.
        store = target.fleet[host].store
        record = store.load(target.name) or known
        workers = tuple(
            replace(worker, env=_with(worker.env, planned[worker.name])) if worker.name in planned else worker
            for worker in record.workers
        )
        store.save(replace(record, workers=workers))


def _with(env: Mapping[str, str], timeout: str | None) -> dict[str, str]:
    rest = {name: value for name, value in env.items() if name != VARIABLE}
    return rest if timeout is None else {**rest, VARIABLE: timeout}


def _show(console: "Console", change: Change, cost: Cost, rewrite: Rewrite | None, why_not: str) -> None:
    if console.machine:
        return
    rows = [
        [worker, change.hosts[worker], f"{before_s:g} s", f"{change.timeout_s:g} s"]
        for worker, before_s in change.before_s.items()
    ]
    console.table(_CHANGES, rows)
    for line in rewrite.diff if rewrite is not None else ():
        console.data(line)
    if not change.timeout_s:
        console.warn("0 is no watchdog: a request that is pinned stays until its engine is started anew")
    if why_not:
        console.warn(f"the profile is not written, and the next start has what it says: {why_not}")
    if not change.soak_s or not change.workers:
        return
    evidence = (
        f"{cost.longer} of {cost.requests} requests stayed longer than {change.timeout_s:g} s, or were ended early"
    )
    console.say(
        f"{evidence}: {change.expected:.2f} fires in {change.soak_s:g} s are not excluded ({cost.share:.3g} of "
        f"{cost.per_s:.3g} requests/s), and more than {change.allowed} take it back (by chance in less than "
        f"{FALSE_ALARM:.0%} of cases)"
    )
    if change.soak_s < change.timeout_s:
        console.warn(
            f"what {change.timeout_s:g} s ends has been in the queue for so long: {change.soak_s:g} s see little of it"
        )
