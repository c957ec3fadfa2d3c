"""What a restart finds: the stack that runs, what an earlier restart left undone, and the plan of the new one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from dsv4ctl.drift import drift_of
from dsv4ctl.errors import NothingRunning, OperationFailed, Refused, UsageError
from dsv4ctl.fleet import Fleet, OpenHost, open_fleet
from dsv4ctl.profile.here import load_here
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.restart.layers import layered, redacted, restored
from dsv4ctl.restart.pending import Pending, PendingStore, Started
from dsv4ctl.restart.running import Running, as_before, read_running
from dsv4ctl.stack import Stack, Worker, build_stack, hosts_of
from dsv4ctl.state import StackRecord, WorkerRecord, planned
from dsv4ctl.supervisors.base import UnitState
from dsv4ctl.targets import open_target, record_from_units

Only = Literal["prefill", "decode"] | None


@dataclass(frozen=True)
class Settings:
    """What the command line sets on top of what was set before."""

    sets: tuple[str, ...]
    unsets: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """A stack of ours and its hosts. `ref` is its profile, `loaded` that profile as it was last started."""

    name: str
    ref: str
    fleet: Fleet
    loaded: LoadedProfile


@dataclass(frozen=True)
class Situation:
    """What there is, and what will be.

    `leaving` are recorded engines that are ended first; `fresh` are engines that a restart which was cut off has
    started already, as they are planned now; `before` are the workers of the way back, None where that is not known.
    `useless` are keys that were to be taken out and that nothing sets.
    """

    found: Found
    records: tuple[tuple[str, StackRecord], ...]
    running: tuple[Running, ...]
    pending: Pending | None
    loaded: LoadedProfile
    stack: Stack
    engines: tuple[Worker, ...]
    leaving: tuple[Running, ...]
    fresh: tuple[WorkerRecord, ...]
    before: tuple[Worker, ...] | None
    before_sets: tuple[str, ...]
    useless: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, WorkerRecord]:
        """Workers that run on as they are: the router, the other side of a pair, what was started already."""
        starting = {worker.name for worker in self.engines}
        others = {one.name: replace(one.record, handle=one.handle) for one in self.running if one.name not in starting}
        planned_names = {worker.name for worker in self.stack.workers}
        return {
            **{name: record for name, record in others.items() if name in planned_names},
            **{record.name: record for record in self.fresh},
        }


@contextmanager
def open_found(ref: str | None, open_host: OpenHost) -> Iterator[Found]:
    """Find the stack and open its hosts, by the profile and the settings that it was started with.

    Raises:
        NothingRunning, UsageError, HostUnreachable: as `targets.open_target`.
    """
    with open_target(ref, open_host) as target:
        name, record = target.name, target.records[0][1]
        by_profile = target.stack is not None
    profile = ref if by_profile else record.profile
    # Secrets are fingerprints here, which does for finding the hosts.
    loaded = load_here(profile, record.sets)
    if loaded.profile.name != name:
        raise UsageError(
            f"the profile {profile or loaded.found.shown} is of stack {loaded.profile.name}, and what runs is {name}"
        )
    with open_fleet(loaded.profile, open_host) as fleet:
        yield Found(name, record.profile or profile or "", fleet, loaded)


def look(found: Found, settings: Settings, only: Only) -> Situation:
    """Recognise everything, and make the plan. Nothing is changed.

    Raises:
        NothingRunning: there is no record of the stack, and no unit of it.
        UsageError: what was set means nothing; or the profile has other workers than were started, or elsewhere.
        Refused: one side alone, and the other is not there.
        HostUnreachable
    """
    fleet, name = found.fleet, found.name
    sites = {host: place.site for host, place in fleet.items()}
    old_stack = build_stack(found.loaded, sites)
    records = _records(found, old_stack)
    running = read_running(fleet, records)
    pending = PendingStore(fleet[old_stack.entry.host], name).load()
    before_kept = pending.sets if pending is not None else records[0][1].sets
    known = tuple(started for place in fleet.values() for started in PendingStore(place, name).load_before())
    environs = [one.environ for one in running if one.environ is not None] + [started.env for started in known]
    argvs = [one.argv for one in running if one.argv is not None] + [started.argv for started in known]
    sets = restored(layered(before_kept, settings.sets, settings.unsets), environs, argvs)
    ref = found.loaded.found.path
    loaded = load_here(str(ref), sets)
    if loaded.profile.name != name:
        raise UsageError(
            f"a restart cannot give stack {name} another name, {loaded.profile.name}",
            hint="`dsv4ctl stop`, then `dsv4ctl serve` with that name",
        )
    if loaded.profile.supervisor != records[0][1].supervisor:
        raise UsageError(
            f"stack {name} runs under {records[0][1].supervisor}, and a restart cannot put it under "
            f"{loaded.profile.supervisor}",
            hint="`dsv4ctl stop`, then `dsv4ctl serve`",
        )
    if set(hosts_of(loaded.profile)) - set(fleet):
        raise UsageError("a restart cannot move a worker to another host", hint="`dsv4ctl stop`, then `dsv4ctl serve`")
    stack = build_stack(loaded, sites)
    engines = tuple(worker for worker in stack.engines if only in (None, worker.role))
    mine = tuple(one for one in running if one.record.role != ROUTER and only in (None, one.record.role))
    if not engines or not mine:
        raise UsageError(f"stack {name} has no {only or 'engine'} to restart")
    _check_same_workers(name, stack, running)
    if only is not None:
        _check_other_side(name, only, pending, running)
    fresh = _fresh(found, pending, mine, engines)
    leaving = tuple(one for one in mine if one.alive and one.name not in {record.name for record in fresh})
    if leaving:
        # A pair is restarted together: what an earlier try has started beside an old one goes as well.
        fresh, leaving = (), tuple(one for one in mine if one.alive)
    before = _before(pending, known, old_stack, mine)
    before_sets = records[0][1].sets if pending is None else pending.before_sets

    def without(key: str) -> Stack:
        others = [one for one in settings.unsets if one != key]
        return build_stack(
            load_here(str(ref), restored(layered(before_kept, settings.sets, others), environs, argvs)), sites
        )

    useless = tuple(key for key in settings.unsets if without(key) == stack) if pending is None else ()
    return Situation(
        found, records, running, pending, loaded, stack, engines, leaving, fresh, before, before_sets, useless
    )


def _check_same_workers(name: str, stack: Stack, running: Sequence[Running]) -> None:
    """A restart starts what ran: nothing is added, taken away or moved by an edited profile."""
    plan = {(worker.name, worker.host) for worker in stack.workers}
    record = {(one.name, one.host) for one in running}
    if plan == record:
        return
    words = [f"{worker} on {host} is in the profile, and was not started" for worker, host in sorted(plan - record)]
    words += [f"{worker} on {host} was started, and is not in the profile" for worker, host in sorted(record - plan)]
    raise UsageError(
        f"the profile of stack {name} has other workers than the stack that was started",
        why="; ".join(words),
        hint="`dsv4ctl stop`, then `dsv4ctl serve`; or take that change of the profile back",
    )


def _check_other_side(name: str, only: Only, pending: Pending | None, running: Sequence[Running]) -> None:
    """One side alone is no help where the other is not there, or has a restart of its own to be ended."""
    down = [one for one in running if one.record.role not in {ROUTER, only} and one.state is not UnitState.RUNNING]
    if down:
        raise Refused(
            f"{only} of stack {name} was not restarted alone",
            why=f"{', '.join(one.name for one in down)} of the other side is not running",
            hint="leave --only out: both sides are started then",
        )
    sides = {one.record.role for one in running if pending is not None and one.name in pending.engines}
    if sides - {only}:
        raise Refused(
            f"{only} of stack {name} was not restarted alone",
            why="a restart of both sides was begun and has not ended",
            hint="leave --only out: that goes on with it",
        )


def _records(found: Found, stack: Stack) -> tuple[tuple[str, StackRecord], ...]:
    records: list[tuple[str, StackRecord]] = []
    for host, place in found.fleet.items():
        record = place.store.load(found.name) or record_from_units(stack, host, found.fleet)
        if record is not None:
            records.append((host, record))
    if not records:
        raise NothingRunning(f"no stack {found.name} of ours is known on {', '.join(found.fleet)}")
    return tuple(records)


def _fresh(
    found: Found, pending: Pending | None, mine: Sequence[Running], engines: Sequence[Worker]
) -> tuple[WorkerRecord, ...]:
    """Engines that were started by the restart that was cut off, and run just as they are planned now."""
    if pending is None:
        return ()
    old = {(handle.pid, handle.start_ticks) for handle in pending.leaving}
    # What it was not to restart has not been started by it, old as it may be.
    plans = {worker.name: planned(worker) for worker in engines if worker.name in pending.engines}
    fresh: list[WorkerRecord] = []
    for one in mine:
        plan = plans.get(one.name)
        if plan is None or one.handle is None or not one.alive or one.pid is None:
            continue
        if (one.handle.pid, one.handle.start_ticks) in old:
            continue
        try:
            drifts = drift_of(found.fleet[one.host].host, one.pid, plan)
        except (FileNotFoundError, PermissionError, OperationFailed):
            continue
        if not drifts:
            fresh.append(replace(plan, handle=one.handle))
    return tuple(fresh)


def _before(
    pending: Pending | None, known: Sequence[Started], old: Stack, mine: Sequence[Running]
) -> tuple[Worker, ...] | None:
    """What is started again if the new configuration does not come up."""
    if pending is None:
        return as_before(old, mine)
    # The records are those of what the restart that was cut off has started.
    started = {one.name: one for one in known}
    workers = [
        replace(
            worker,
            argv=started[worker.name].argv,
            env=started[worker.name].env,
            listen=started[worker.name].listen,
            port=started[worker.name].port,
            ports=started[worker.name].ports,
        )
        for worker in old.engines
        if worker.name in started
    ]
    return tuple(workers) or None


def stored_sets(loaded: LoadedProfile) -> tuple[str, ...]:
    """What was set on top of the profile, as it may be stored."""
    return redacted(loaded.sets)
