"""Ending a stack and proving that nothing of it is left: no process, no port, no shared memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsv4ctl.errors import DeadlineExceeded, VerificationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.plan import Action, Facts, Step
from dsv4ctl.procfs import listeners, own_uid, shm_listing, shm_segments
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.state import StackRecord, WorkerRecord
from dsv4ctl.supervisors.base import UnitHandle, UnitState, UnitStatus
from dsv4ctl.waiting import wait_until

_KILL_DEADLINE_S = 10.0
_PROVE_DEADLINE_S = 10.0
_LOOK_EVERY_S = 0.15


def stop_plan(records: Sequence[tuple[str, StackRecord]], grace_s: float) -> tuple[Step, ...]:
    """The steps that end a stack. `records` are (host, record); `grace_s` is how long a worker may take to end.

    The router goes first, so that nobody sends requests to engines that are ending. SGLang drains without bound while a
    request is pinned, so the grace is ours.
    """
    members = [(host, worker) for host, record in records for worker in record.workers]
    members.sort(key=lambda member: member[1].role != ROUTER)
    steps = [
        Step(f"note:{host}", f"note the shared memory in use on {host}", host, _PROVE_DEADLINE_S) for host, _ in records
    ]
    steps += [
        Step(f"terminate:{worker.name}", f"ask {worker.name} to end", host, _KILL_DEADLINE_S)
        for host, worker in members
    ]
    steps += [Step(f"drain:{host}", f"wait until all on {host} have ended", host, grace_s) for host, _ in records]
    steps += [
        Step(f"kill:{worker.name}", f"kill what is left of {worker.name}", host, _KILL_DEADLINE_S)
        for host, worker in members
    ]
    steps += [
        Step(
            f"prove:{host}", f"prove that no process, port or shared memory is left on {host}", host, _PROVE_DEADLINE_S
        )
        for host, _ in records
    ]
    steps += [Step(f"forget:{host}", f"forget the stack on {host}", host, _PROVE_DEADLINE_S) for host, _ in records]
    return tuple(steps)


class Stopping:
    """One stack being ended. A worker whose handle was never written is looked for by its unit's name."""

    def __init__(
        self, fleet: Fleet, records: Sequence[tuple[str, StackRecord]], *, sleep: Callable[[float], None]
    ) -> None:
        self._fleet = fleet
        self._records = dict(records)
        self._sleep = sleep
        self._shm: dict[str, set[str]] = {host: set(record.shm) for host, record in records}
        self.handles: dict[str, UnitHandle] = {}
        for host, record in records:
            for worker in record.workers:
                handle = worker.handle or fleet[host].supervisor.find(worker.unit)
                if handle is not None:
                    self.handles[worker.name] = handle

    def action_for(self, step: Step) -> Action:
        """How a step of `stop_plan` is carried out."""
        kind, _, name = step.id.partition(":")
        place = self._fleet[step.host]
        if kind in {"terminate", "kill"}:
            return _Signal(self, place, name, step, kill=kind == "kill")
        return _OnHost(self, place, kind, step)

    def status(self, place: Place, worker: str) -> UnitStatus | None:
        """Status of a worker's unit; None when there is no unit."""
        handle = self.handles.get(worker)
        return place.supervisor.status(handle) if handle is not None else None

    def alive(self, place: Place) -> dict[str, tuple[int, ...]]:
        """Pids that are left, by worker, on one host."""
        found: dict[str, tuple[int, ...]] = {}
        for worker in self.workers(place):
            status = self.status(place, worker.name)
            if status is not None and status.pids:
                found[worker.name] = status.pids
        return found

    def workers(self, place: Place) -> tuple[WorkerRecord, ...]:
        return self._records[place.name].workers

    def note(self, place: Place) -> Facts:
        """Remember which files in /dev/shm our processes have open: what is left of them is ours to remove."""
        pids = [pid for pids in self.alive(place).values() for pid in pids]
        self._shm[place.name] |= {segment.path for segment in shm_segments(place.host, pids)}
        return {"segments": sorted(self._shm[place.name]), "processes": len(pids)}

    def drain(self, place: Place, grace_s: float) -> Facts:
        """Wait for a polite end, within the grace. What remains is no failure: the next step ends it."""
        try:
            wait_until(
                lambda: not self.alive(place),
                deadline_s=grace_s,
                interval_s=_LOOK_EVERY_S,
                what=f"the workers on {place.name} to end",
                sleep=self._sleep,
            )
        except DeadlineExceeded:
            return {"left": sorted(self.alive(place))}
        return {"left": []}

    def prove(self, place: Place) -> Facts:
        """No process, no port, no shared memory of ours.

        Raises:
            VerificationFailed: something is left, with its pid, port or path.
        """
        left = self.alive(place)
        if left:
            words = ", ".join(f"{name} (pid {', '.join(map(str, pids))})" for name, pids in left.items())
            raise VerificationFailed(f"processes are left on {place.name}: {words}")
        ours = {port for worker in self.workers(place) for port in worker.ports.values()}
        held = {listener.port: listener.pid for listener in listeners(place.host) if listener.port in ours}
        removed = self._remove_segments(place)
        # A stranger may take a port the moment it is free: that is no remainder of ours, and it is said.
        return {"removed_segments": removed, "ports_held_by_others": {str(port): pid for port, pid in held.items()}}

    def _remove_segments(self, place: Place) -> list[str]:
        # Ours once, and nobody seen to use it now. Where some process could not be looked into, that our own processes
        # had it open, under our own user, must do.
        noted, mine = self._shm[place.name], own_uid(place.host)
        orphans = [
            file.path
            for file in shm_listing(place.host)
            if file.path in noted and (file.in_use is False or (file.in_use is None and file.owner_uid == mine))
        ]
        if orphans:
            place.host.run(["rm", "-f", "--", *orphans], deadline_s=_PROVE_DEADLINE_S)
        still = sorted({file.path for file in shm_listing(place.host)} & set(orphans))
        if still:
            raise VerificationFailed(f"shared memory is left on {place.name}: {', '.join(still)}")
        return orphans

    def forget(self, place: Place) -> Facts:
        """Drop the records of what is proven to be gone."""
        for worker in self.workers(place):
            handle = self.handles.get(worker.name)
            if handle is not None:
                place.supervisor.forget(handle)
        place.store.delete(self._records[place.name].stack)
        return {}


@dataclass(frozen=True)
class _Signal:
    stopping: Stopping
    place: Place
    worker: str
    step: Step
    kill: bool

    def already(self) -> str | None:
        status = self.stopping.status(self.place, self.worker)
        if status is None:
            return "it was never started"
        if self.kill:
            return None if status.pids else "nothing is left of it"
        return None if status.state is UnitState.RUNNING else f"it is not running ({status.state.value})"

    def run(self) -> Facts:
        handle = self.stopping.handles[self.worker]
        if not self.kill:
            self.place.supervisor.terminate(handle)
            return {}
        self.place.supervisor.kill(handle)
        wait_until(
            lambda: not self.place.supervisor.status(handle).pids,
            deadline_s=self.step.deadline_s,
            interval_s=_LOOK_EVERY_S,
            what=f"the killed processes of {self.worker} on {self.place.name} to go",
        )
        return {}


@dataclass(frozen=True)
class _OnHost:
    stopping: Stopping
    place: Place
    kind: str
    step: Step

    def already(self) -> str | None:
        return None

    def run(self) -> Facts:
        if self.kind == "note":
            return self.stopping.note(self.place)
        if self.kind == "drain":
            return self.stopping.drain(self.place, self.step.deadline_s)
        if self.kind == "prove":
            return self.stopping.prove(self.place)
        return self.stopping.forget(self.place)
