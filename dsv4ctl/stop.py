"""Ending a stack and proving that nothing of it is left: no process, no port, no shared memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from dsv4ctl.errors import DeadlineExceeded, VerificationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.plan import Action, Always, Facts, Step
from dsv4ctl.procfs import listeners, own_uid, shm_listing, shm_segments, still_there
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.state import StackRecord, WorkerRecord
from dsv4ctl.supervisors.base import UnitHandle, UnitStatus
from dsv4ctl.waiting import wait_until

T = TypeVar("T")

_KILL_DEADLINE_S = 10.0
_PROVE_DEADLINE_S = 10.0
_LOOK_EVERY_S = 0.15


def stop_plan(records: Sequence[tuple[str, StackRecord]], grace_s: float) -> tuple[Step, ...]:
    """The steps that end a stack. `records` are (host, record); `grace_s` is how long a worker may take to end.

    The router goes first, so that nobody sends requests to engines that are ending. SGLang drains without bound while a
    request is pinned, so the grace is ours.
    """
    hosts = [host for host, _ in records]
    routers = [host for host, record in records if any(worker.role == ROUTER for worker in record.workers)]
    titles = (
        ("note", "note the shared memory in use on {}", hosts, _PROVE_DEADLINE_S),
        ("router", "ask the router on {} to end", routers, _KILL_DEADLINE_S),
        ("engines", "ask the engines on {} to end", hosts, _KILL_DEADLINE_S),
        ("drain", "wait until all on {} have ended", hosts, grace_s),
        ("kill", "kill what is left on {}", hosts, _KILL_DEADLINE_S),
        ("prove", "prove that no process, port or shared memory is left on {}", hosts, _PROVE_DEADLINE_S),
        ("forget", "forget the stack on {}", hosts, _PROVE_DEADLINE_S),
    )
    return tuple(
        Step(f"{kind}:{host}", title.format(host), host, deadline_s)
        for kind, title, where, deadline_s in titles
        for host in where
    )


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
        return _OnHost(self, self._fleet[step.host], step.id.partition(":")[0], step)

    def statuses(self, place: Place) -> dict[str, UnitStatus]:
        """Status of every unit of a host, by worker; a worker that was never started has none."""
        names = [worker.name for worker in self.workers(place) if worker.name in self.handles]
        found = in_parallel(lambda name: place.supervisor.status(self.handles[name]), names)
        return dict(zip(names, found, strict=True))

    def alive(self, place: Place) -> dict[str, tuple[int, ...]]:
        """Pids that are left, by worker, on one host."""
        return {name: status.pids for name, status in self.statuses(place).items() if status.pids}

    def workers(self, place: Place) -> tuple[WorkerRecord, ...]:
        return self._records[place.name].workers

    def note(self, place: Place) -> Facts:
        """Remember which files in /dev/shm our processes have open: what is left of them is ours to remove."""
        pids = [pid for pids in self.alive(place).values() for pid in pids]
        self._shm[place.name] |= {segment.path for segment in shm_segments(place.host, pids)}
        return {"segments": sorted(self._shm[place.name]), "processes": len(pids)}

    def terminate(self, place: Place, *, routers: bool) -> Facts:
        """SIGTERM to the routers, or to the engines, of a host."""
        names = [worker.name for worker in self.workers(place) if (worker.role == ROUTER) == routers]
        asked = [name for name in names if name in self.handles]
        in_parallel(lambda name: place.supervisor.terminate(self.handles[name]), asked)
        return {"asked": asked}

    def drain(self, place: Place, grace_s: float) -> Facts:
        """Wait for a polite end, within the grace. What remains is no failure: the next step ends it."""
        handles = [self.handles[worker.name] for worker in self.workers(place) if worker.name in self.handles]
        try:
            # The leader of a unit goes last, so a cheap look at the leaders is enough to wait by.
            wait_until(
                lambda: not any(still_there(place.host, handle.pid, handle.start_ticks) for handle in handles),
                deadline_s=grace_s,
                interval_s=_LOOK_EVERY_S,
                what=f"the workers on {place.name} to end",
                sleep=self._sleep,
            )
        except DeadlineExceeded:
            return {"ended": False}
        return {"ended": True}

    def kill(self, place: Place, deadline_s: float) -> Facts:
        """SIGKILL to all that is left, and wait until it is gone."""
        left = sorted(self.alive(place))
        in_parallel(lambda name: place.supervisor.kill(self.handles[name]), left)
        if left:
            wait_until(
                lambda: not self.alive(place),
                deadline_s=deadline_s,
                interval_s=_LOOK_EVERY_S,
                what=f"the killed processes on {place.name} to go",
            )
        return {"killed": left}

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

    def forget_units(self, place: Place) -> None:
        """Drop what the supervisor keeps of units that are proven to be gone, and their temporary directories."""
        names = [worker.name for worker in self.workers(place) if worker.name in self.handles]
        in_parallel(lambda name: place.supervisor.forget(self.handles[name]), names)
        own = [f"{place.site.tmp_root}/{worker.unit}" for worker in self.workers(place)]
        place.host.run(["rm", "-rf", "--", *own], deadline_s=_PROVE_DEADLINE_S)

    def forget(self, place: Place) -> Facts:
        """Drop the records of what is proven to be gone."""
        self.forget_units(place)
        place.store.delete(self._records[place.name].stack)
        return {}


def in_parallel(do: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """`do` for each name at the same time: most of what a supervisor does is waiting for its host."""
    if not names:
        return []
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(do, names))


@dataclass(frozen=True)
class _OnHost(Always):
    stopping: Stopping
    place: Place
    kind: str
    step: Step

    def run(self) -> Facts:
        stopping, place = self.stopping, self.place
        return {
            "note": lambda: stopping.note(place),
            "router": lambda: stopping.terminate(place, routers=True),
            "engines": lambda: stopping.terminate(place, routers=False),
            "drain": lambda: stopping.drain(place, self.step.deadline_s),
            "kill": lambda: stopping.kill(place, self.step.deadline_s),
            "prove": lambda: stopping.prove(place),
            "forget": lambda: stopping.forget(place),
        }[self.kind]()
