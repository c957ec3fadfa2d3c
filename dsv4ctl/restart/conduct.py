"""Carrying a restart out; and when a step fails: traffic let in again, the way back, or a state that has a name."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dsv4ctl.errors import DeadlineExceeded, Dsv4Error, HostUnreachable, Interrupted, OperationFailed
from dsv4ctl.journal import Diary, JournalSink, NotWritten
from dsv4ctl.locks import LockLost
from dsv4ctl.plan import Outcome, Step, Timed, execute, how_it_ended
from dsv4ctl.restart.acts import action_for
from dsv4ctl.restart.ending import QUIET
from dsv4ctl.restart.evidence import keep_evidence
from dsv4ctl.restart.patch_table import Table, expected_table
from dsv4ctl.restart.pending import Pending, state_of
from dsv4ctl.restart.plan import Scope, co_restart_plan, ending_steps, starting_steps
from dsv4ctl.restart.restarting import Before, Restarting
from dsv4ctl.restart.running import read_running
from dsv4ctl.serve import ServeContext
from dsv4ctl.stack import Stack, Worker

State = Literal["restarted", "rolled back", "failed"]

FINISH = "finish"
"""After the last step of the plan: what was done is written down, and nothing is under way any more."""

_UNCORDON_WITHIN_S = 15.0
_FAILED_WITHIN_S = 30.0
_AT_THE_DOOR = frozenset({"uncordon", "traffic", "start:router", "await:router", "readback:router", FINISH})


@dataclass(frozen=True)
class Work:
    """Everything that one restart needs. `before_workers`: the engines of the way back, None where there is none."""

    scope: Scope
    context: ServeContext
    before: Before
    tables: Mapping[str, Table]
    pending: Pending
    before_workers: tuple[Worker, ...] | None
    may_roll_back: bool
    journal: JournalSink
    report: Outcome
    before_step: Callable[[], None]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Done:
    """What came of it. `downtime_s`: from the moment in which the router let nobody in any more (without a router, the
    engines were told to end) to the right answer through the entry; None where both were not seen in this run. `error`
    is why the new configuration is not what runs now; where the state is failed, its hint names the state that the
    stack is in, and what to do."""

    timeline: tuple[Timed, ...]
    state: State
    downtime_s: float | None
    error: Dsv4Error | None = None


class _Course:
    """What was done so far, and when the doors were closed and opened. A run that goes on with one that was cut off
    does not know when they were closed."""

    def __init__(self, clock: Callable[[], float], *, goes_on: bool) -> None:
        self._clock = clock
        self._goes_on = goes_on
        self._closed_at: float | None = None
        self._opened_at: float | None = None
        self.timeline: list[Timed] = []
        self.step = ""

    def add(self, timed: Timed) -> None:
        self.timeline.append(timed)
        if timed.state != "done":
            return
        if self._closed_at is None and (timed.step.id == "cordon" or timed.step.id.startswith("end:")):
            self._closed_at = self._clock()
        if timed.step.id == "traffic":
            self._opened_at = self._clock()

    def done(self, state: State, error: Dsv4Error | None = None) -> Done:
        down = None
        if self._closed_at is not None and self._opened_at is not None and not self._goes_on:
            down = round(self._opened_at - self._closed_at, 3)
        return Done(tuple(self.timeline), state, down, error)


def carry_out(work: Work) -> Done:
    """Do it.

    Raises:
        KeyboardInterrupt: Ctrl-C twice; what state the stack is in was said.
    """
    restarting = Restarting(work.scope, work.context, work.before, work.pending, work.tables)
    course = _Course(work.clock, goes_on=work.pending.phase != "serving")
    try:
        _execute(work, restarting, co_restart_plan(work.scope, work.context.canary), course)
        course.step = FINISH
        restarting.finish()
    except (Dsv4Error, KeyboardInterrupt) as error:
        restarting.close()
        try:
            return _failed(work, restarting, error, course)
        except Dsv4Error as final:
            return course.done("failed", final)
    restarting.close()
    return course.done("restarted")


def _execute(work: Work, restarting: Restarting, steps: Sequence[Step], course: _Course) -> None:
    # One at a time, so that what was done is known when the next one fails.
    for step in steps:
        course.step = step.id
        began = work.clock()
        try:
            (timed,) = execute(
                (step,),
                lambda step: action_for(restarting, step),
                journal=work.journal,
                interrupts=work.context.interrupts,
                report=work.report,
                before_step=work.before_step,
            )
        except (Dsv4Error, KeyboardInterrupt) as error:
            course.add(Timed(step, how_it_ended(error), work.clock() - began))
            raise
        course.add(timed)


def _failed(work: Work, restarting: Restarting, error: Dsv4Error | KeyboardInterrupt, course: _Course) -> Done:
    """What follows from a failure, by how far this has come and by what failed.

    Raises:
        Dsv4Error: the failure, with the state that the stack is in and what to do.
    """
    phase, step = restarting.pending.phase, course.step
    state = state_of(restarting.pending)
    # From here on a full disk stops nothing any more.
    work = replace(work, journal=Diary(work.journal, work.say))
    work.journal.write("stopped", phase=phase, step=step, error=str(error) or type(error).__name__)
    if isinstance(error, KeyboardInterrupt):
        work.say(f"{state}; run `dsv4ctl co-restart` again: it goes on from there")
        raise error
    if isinstance(error, LockLost):
        # Whoever has it may be at work on the very same things.
        error.hint = f"{state}, unless the other has changed that: see `dsv4ctl status`"
        raise error
    if phase in {"serving", "cordoned"}:
        _let_in_again(work, restarting, error)
        raise error
    if isinstance(error, HostUnreachable):
        error.hint = f"{state}; when the host answers, run this again: it goes on from there"
        raise error
    if isinstance(error, Interrupted):
        raise Interrupted(
            f"{error.what}: {state}", hint="run `dsv4ctl co-restart` again: it goes on from there"
        ) from error
    if phase in {"ending", "down"} or step.partition(":")[0] in QUIET or isinstance(error, NotWritten):
        _advise(error, f"{state}; run this again: it goes on from there")
        raise error
    if step == FINISH:
        _advise(error, "the stack is restarted, proven and serves, and that is not written down: run this again")
        raise error
    if step in _AT_THE_DOOR:
        # The engines have proven themselves: another configuration of theirs would not help.
        _advise(
            error,
            "the engines run and have proven themselves, and are not served to clients: see to the router and run this "
            "again",
        )
        raise error
    if not work.may_roll_back or not _differs(work):
        return _end_what_was_started(work, restarting, error)
    return _roll_back(work, restarting, error, course)


def _advise(error: Dsv4Error, words: str) -> None:
    error.hint = "; ".join(filter(None, (error.hint, words)))


def _let_in_again(work: Work, restarting: Restarting, error: Dsv4Error) -> None:
    """Nothing was ended: the router gets its workers back, and nothing is under way any more."""
    work.context.interrupts.acknowledge()
    cordoned = restarting.pending.phase == "cordoned"
    serves = "nothing was ended" + (", and requests that they had were" if restarting.pending.step == "abort" else "")
    try:
        if cordoned and work.scope.router is not None and not work.scope.replace_router:
            with restarting.entry.host.http(timeout_s=_UNCORDON_WITHIN_S) as client:
                router = restarting.router(client, work.scope.router.url)
                if restarting.pending.step == "cordon" and isinstance(error, DeadlineExceeded):
                    router.put_back(restarting.pending.router, deadline_s=_UNCORDON_WITHIN_S)
                else:
                    router.add(restarting.pending.router, deadline_s=_UNCORDON_WITHIN_S)
            serves += ", and the router has its workers again"
    except Dsv4Error as second:
        error.hint = f"nothing was ended, and the router did not get its workers back ({second}); run this again"
        return
    _advise(error, serves)
    try:
        restarting.forget()
    except Dsv4Error as second:
        _advise(error, f"that this restart is over is not written down everywhere ({second})")


def _differs(work: Work) -> bool:
    """Whether the way back leads to another configuration than the one that failed."""
    if work.before_workers is None:
        return False
    new = {worker.name: (worker.argv, dict(worker.env)) for worker in work.scope.engines}
    return any(new.get(worker.name) != (worker.argv, dict(worker.env)) for worker in work.before_workers)


def _ending(work: Work, restarting: Restarting, scope: Scope) -> Restarting:
    """A restart of `scope` that first ends what the failed one has started."""
    records = tuple(
        (host, record) for host, place in restarting.fleet.items() if (record := place.store.load(work.pending.stack))
    )
    running = read_running(restarting.fleet, records)
    names = {worker.name for worker in work.scope.engines}
    scope = replace(scope, leaving=tuple(one.name for one in running if one.name in names))
    kept = {name: record for name, record in work.context.kept.items() if name not in names}
    context = replace(work.context, stack=scope.stack, kept=kept, sets=work.pending.before_sets)
    pids = tuple(pid for one in work.before.running for pid in one.pids)
    before = Before(running, work.before.gpus, work.before.abort_is_error, records, pids)
    tables = _tables(restarting, scope.engines)
    return Restarting(scope, context, before, restarting.pending, tables, on_trouble=work.say)


def _keep_what_failed(work: Work, back: Restarting, error: Dsv4Error) -> None:
    """Beside the evidence of before: the engines that did not come up, whose logs the next start turns away."""
    names = {worker.name for worker in work.scope.engines}
    kept: list[str] = []
    for host, folder in work.pending.evidence.items():
        mine = [one for one in back.before.running if one.host == host and one.name in names]
        try:
            keep_evidence(back.fleet[host], mine, work.scope.engines, f"{folder}-failed", within_s=_FAILED_WITHIN_S)
        except Dsv4Error as second:
            work.say(f"what the engines on {host} said could not be kept: {second}")
        else:
            kept.append(f"{folder}-failed on {host}")
    if kept:
        _advise(error, f"what the engines said that did not come up is kept in {', '.join(kept)}")


def _tables(restarting: Restarting, engines: Sequence[Worker]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for worker in engines:
        place = restarting.fleet[worker.host]
        known = bool(restarting.table_of(worker))
        tables[worker.name] = expected_table(place.host, place.site.python, worker.env) if known else {}
    return tables


def _end_what_was_started(work: Work, restarting: Restarting, error: Dsv4Error) -> Done:
    """There is no way back: leave nothing half alive, and say so."""
    work.context.interrupts.acknowledge()
    names = ", ".join(worker.name for worker in work.scope.engines)
    try:
        back = _ending(work, restarting, replace(work.scope, grace_s=0.0))
        _keep_what_failed(work, back, error)
        _execute(work, back, ending_steps(back.scope), _Course(work.clock, goes_on=True))
    except Dsv4Error as second:
        _advise(error, f"what was started was to be ended, and then: {second}; see `dsv4ctl status`")
        raise error from second
    why = (
        "what ran before is not known"
        if work.before_workers is None
        else "--no-rollback was given"
        if _differs(work)
        else "it ran with this very configuration before"
    )
    advice = (
        f"{names} are ended, and out of the router; there is no way back: {why}. Run this again, or change a setting"
    )
    # Exit 7 is for a stack that serves again as before; this one is down.
    raise OperationFailed(error.what, why=error.why, hint="; ".join(filter(None, (error.hint, advice)))) from error


def _roll_back(work: Work, restarting: Restarting, error: Dsv4Error, course: _Course) -> Done:
    assert work.before_workers is not None
    work.context.interrupts.acknowledge()
    work.say(f"the new configuration did not come up: {error}")
    work.say("going back to what ran before")
    old = _old_scope(work.scope, work.before_workers)
    back: Restarting | None = None
    try:
        back = _ending(work, restarting, old)
        _keep_what_failed(work, back, error)
        back.mark(Step("roll-back", "", "", 0.0), "rolling back", sets=work.pending.before_sets)
        _execute(work, back, (*ending_steps(back.scope), *starting_steps(back.scope, work.context.canary)), course)
        back.finish()
    except Dsv4Error as second:
        state = state_of((back or restarting).pending)
        hint = f"{state}; run `dsv4ctl co-restart` again: it goes on with what was set before"
        if isinstance(second, Interrupted):
            raise Interrupted(f"{second.what} on the way back to the old configuration", hint=hint) from second
        failed = f"the new configuration did not come up ({error})"
        if isinstance(second, HostUnreachable | LockLost):
            second.hint = f"{failed}; {hint}"
            raise
        if course.step in _AT_THE_DOOR:
            what = f"{failed}; the old one runs and has proven itself, and is not served to clients"
        else:
            what = f"{failed}, and the way back to the old one did not come to its end either"
        raise OperationFailed(what, why=str(second), hint=hint) from second
    finally:
        if back is not None:
            back.close()
    return course.done("rolled back", error)


def _old_scope(scope: Scope, before: Sequence[Worker]) -> Scope:
    """The same restart, with the engines that ran before."""
    old = {worker.name: worker for worker in before}
    engines = tuple(old[worker.name] for worker in scope.engines if worker.name in old)
    starting = {worker.name for worker in scope.engines}
    workers = tuple(
        old.get(worker.name, worker) if worker.name in starting else worker
        for worker in scope.stack.workers
        if worker.name not in starting or worker.name in old
    )
    stack: Stack = replace(scope.stack, workers=workers)
    return replace(scope, stack=stack, engines=engines)
