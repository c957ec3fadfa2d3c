"""Carrying a restart out; and when a step fails: traffic let in again, the way back, or a state that has a name."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dsv4ctl.errors import Dsv4Error, HostUnreachable, Interrupted, VerificationFailed
from dsv4ctl.journal import Diary, JournalSink
from dsv4ctl.plan import Outcome, Step, Timed, execute
from dsv4ctl.restart.acts import action_for
from dsv4ctl.restart.patch_table import Table, expected_table
from dsv4ctl.restart.pending import Pending, state_of
from dsv4ctl.restart.plan import Scope, co_restart_plan, ending_steps, starting_steps
from dsv4ctl.restart.restarting import Before, Restarting
from dsv4ctl.restart.running import read_running
from dsv4ctl.serve import ServeContext
from dsv4ctl.stack import Stack, Worker

_UNCORDON_WITHIN_S = 15.0
_AT_THE_DOOR = frozenset({"uncordon", "traffic"})


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
    is why the new configuration is not what runs now."""

    timeline: tuple[Timed, ...]
    state: Literal["restarted", "rolled back"]
    downtime_s: float | None
    error: Dsv4Error | None = None


class _Course:
    """What was done so far, and when the doors were closed and opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._closed_at: float | None = None
        self._opened_at: float | None = None
        self.timeline: list[Timed] = []

    def add(self, done: Sequence[Timed]) -> None:
        self.timeline += done
        for timed in done:
            if timed.state != "done":
                continue
            if self._closed_at is None and (timed.step.id == "cordon" or timed.step.id.startswith("end:")):
                self._closed_at = self._clock()
            if timed.step.id == "traffic":
                self._opened_at = self._clock()

    def done(self, state: Literal["restarted", "rolled back"], error: Dsv4Error | None = None) -> Done:
        down = None
        if self._closed_at is not None and self._opened_at is not None:
            down = round(self._opened_at - self._closed_at, 3)
        return Done(tuple(self.timeline), state, down, error)


def carry_out(work: Work) -> Done:
    """Do it.

    Raises:
        Dsv4Error: a step failed; its hint names the state that the stack is in, and what to do.
    """
    restarting = Restarting(work.scope, work.context, work.before, work.pending, work.tables)
    course = _Course(work.clock)
    try:
        _execute(work, restarting, co_restart_plan(work.scope, work.context.canary), course)
        restarting.finish()
    except (Dsv4Error, KeyboardInterrupt) as error:
        restarting.close()
        return _failed(work, restarting, error, course)
    restarting.close()
    return course.done("restarted")


def _execute(work: Work, restarting: Restarting, steps: Sequence[Step], course: _Course) -> None:
    # One at a time, so that what was done is known when the next one fails.
    for step in steps:
        done = execute(
            (step,),
            lambda step: action_for(restarting, step),
            journal=work.journal,
            interrupts=work.context.interrupts,
            report=work.report,
            before_step=work.before_step,
        )
        course.add(done)


def _failed(work: Work, restarting: Restarting, error: Dsv4Error | KeyboardInterrupt, course: _Course) -> Done:
    phase = restarting.pending.phase
    # From here on a full disk stops nothing any more.
    work = replace(work, journal=Diary(work.journal, work.say))
    work.journal.write("stopped", phase=phase, step=restarting.pending.step, error=str(error) or type(error).__name__)
    if isinstance(error, KeyboardInterrupt | HostUnreachable):
        if isinstance(error, Dsv4Error):
            error.hint = f"{state_of(restarting.pending)}; when the host answers, run this again: it goes on from there"
        raise error
    if phase in {"serving", "cordoned"}:
        _let_in_again(work, restarting, error)
        raise error
    if isinstance(error, Interrupted):
        raise Interrupted(
            f"{error.what}: {state_of(restarting.pending)}",
            hint="run `dsv4ctl co-restart` again: it goes on from there",
        ) from error
    if phase in {"ending", "down"}:
        error.hint = error.hint or f"{state_of(restarting.pending)}; run this again: it goes on from there"
        raise error
    if restarting.pending.step in _AT_THE_DOOR:
        # The engines have proven themselves: another configuration of theirs would not help.
        said = "the engines run and have proven themselves, and the router does not serve them"
        error.hint = "; ".join(filter(None, (error.hint, f"{said}: see to it and run this again")))
        raise error
    if not work.may_roll_back or not _differs(work):
        return _end_what_was_started(work, restarting, error)
    return _roll_back(work, restarting, error, course)


def _let_in_again(work: Work, restarting: Restarting, error: Dsv4Error) -> None:
    """Nothing was ended: the router gets its workers back, and nothing is under way any more."""
    work.context.interrupts.acknowledge()
    try:
        if restarting.pending.phase == "cordoned" and work.scope.router is not None:
            with restarting.entry.host.http(timeout_s=_UNCORDON_WITHIN_S) as client:
                router = restarting.router(client, work.scope.router.url)
                router.add(restarting.pending.router, deadline_s=_UNCORDON_WITHIN_S)
        restarting.forget()
    except Dsv4Error as second:
        error.hint = f"the router did not get its workers back ({second}); run this again, or `dsv4ctl stop`"
        return
    error.hint = "; ".join(filter(None, (error.hint, "nothing was ended, and the router serves as before")))


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
    before = Before(running, work.before.gpus, work.before.abort_is_error, records)
    tables = _tables(restarting, scope.engines)
    return Restarting(scope, context, before, restarting.pending, tables, on_trouble=work.say)


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
    back = _ending(work, restarting, replace(work.scope, grace_s=0.0))
    names = ", ".join(worker.name for worker in work.scope.engines)
    try:
        _execute(work, back, ending_steps(back.scope), _Course(work.clock))
    except Dsv4Error as second:
        error.hint = f"what was started could not be ended either ({second}): see `dsv4ctl status`"
        raise error from second
    why = (
        "it ran with this very configuration before"
        if not _differs(work)
        else "--no-rollback was given"
        if not work.may_roll_back
        else "what ran before is not known"
    )
    advice = (
        f"{names} are ended, and out of the router; there is no way back: {why}. Run this again, or change a setting"
    )
    error.hint = "; ".join(filter(None, (error.hint, advice)))
    raise error


def _roll_back(work: Work, restarting: Restarting, error: Dsv4Error, course: _Course) -> Done:
    assert work.before_workers is not None
    work.context.interrupts.acknowledge()
    work.say(f"the new configuration did not come up: {error}")
    work.say("going back to what ran before")
    old = _old_scope(work.scope, work.before_workers)
    back: Restarting | None = None
    try:
        back = _ending(work, restarting, old)
        back.mark(Step("roll-back", "", "", 0.0), "rolling back", sets=work.pending.before_sets)
        _execute(work, back, (*ending_steps(back.scope), *starting_steps(back.scope, work.context.canary)), course)
        back.finish()
    except Dsv4Error as second:
        state = state_of((back or restarting).pending)
        hint = f"{state}; run `dsv4ctl co-restart` again: it goes on with the old configuration"
        if isinstance(second, Interrupted):
            raise Interrupted(f"{second.what} on the way back to the old configuration", hint=hint) from second
        what = f"the new configuration did not come up ({error}), and neither did the old one"
        raise VerificationFailed(what, why=str(second), hint=hint) from second
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
