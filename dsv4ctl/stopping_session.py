"""One run of `dsv4ctl stop`: show what is there, ask, act, verify, show again."""

from contextlib import ExitStack

from dsv4ctl.console import Column, Console
from dsv4ctl.errors import Interrupted, NothingRunning
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.launch import end_stack
from dsv4ctl.live import LiveView, age_text
from dsv4ctl.locks import hold_lock
from dsv4ctl.signals import interruptible
from dsv4ctl.state import StackRecord
from dsv4ctl.targets import Target, open_target

_COLUMNS = (Column("worker"), Column("host"), Column("pid", right=True), Column("state"), Column("age", right=True))


def run_stop(console: Console, ref: str | None, *, grace_s: float, yes: bool) -> None:
    """End the stack that `ref` names.

    Raises:
        NothingRunning: there is no such stack, so there is nothing to end.
        Refused: the person said no, or another dsv4ctl is at work on it.
        VerificationFailed: something is left.
    """
    with interruptible() as interrupts, open_target(ref, open_host) as target, ExitStack() as locks:
        console.target = target.name
        _show(console, target)
        question = f"End stack {target.name} on {', '.join(target.fleet)}?"
        console.confirm(question, yes=yes, check=interrupts.check)
        for place in target.fleet.values():
            locks.enter_context(hold_lock(place.host, place.store.lock_path(target.name), "stop"))
        # Between the look and the lock another dsv4ctl may have ended it, or started it anew.
        records = tuple((host, now) for host, record in target.records if (now := _now(target, host, record)))
        if not records:
            raise NothingRunning(f"stack {target.name} was ended by another dsv4ctl meanwhile")
        try:
            with LiveView(console) as view:
                timeline = end_stack(
                    target.fleet,
                    records,
                    grace_s=grace_s,
                    report=view.report,
                    interrupts=interrupts,
                    on_trouble=console.warn,
                )
        except Interrupted as error:
            raise Interrupted(
                f"{error.what}: stack {target.name} may be ended in part",
                hint="`dsv4ctl status` says what is left, `dsv4ctl stop` goes on with it",
            ) from error
        seconds = sum(timed.seconds for timed in timeline)
        killed = [name for timed in timeline for name in timed.facts.get("killed", ())]
        if not console.machine:
            how = f"; {', '.join(killed)} had to be killed" if killed else ""
            console.say(
                f"stack {target.name} is gone after {seconds:.1f} s: no process, port or shared memory is left{how}"
            )
        console.result({"stack": target.name, "seconds": round(seconds, 3), "killed": killed})


def _now(target: Target, host: str, record: StackRecord) -> StackRecord | None:
    """What is recorded on a host by now; what was put together from units is as it was."""
    if host in target.unrecorded:
        return record
    return target.fleet[host].store.load(target.name)


def _show(console: Console, target: Target) -> None:
    """What runs, by kernel and systemd alone: a worker that hangs would only keep its own end waiting."""
    if console.machine:
        return
    members = [(host, worker) for host, record in target.records for worker in record.workers]
    rows = []
    for host, worker in members:
        status = target.fleet[host].supervisor.status(worker.handle) if worker.handle is not None else None
        state = "not started" if status is None else status.state.value
        pid = str(status.main_pid or "-") if status else "-"
        rows.append([worker.name, host, pid, state, age_text(status.age_s if status else None)])
    console.table(_COLUMNS, rows)
