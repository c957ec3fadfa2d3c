"""What runs: each worker as its process was really started, and whether it could be started so again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dsv4ctl.drift import planned_tail
from dsv4ctl.errors import OperationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.procfs import cmdline, environ
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.redaction import argv_stands_for, has_fingerprint, stands_for
from dsv4ctl.stack import Stack, Worker
from dsv4ctl.state import StackRecord, WorkerRecord
from dsv4ctl.supervisors.base import UnitHandle, UnitState


@dataclass(frozen=True)
class Running:
    """One recorded worker and what was found of it. `argv` and `environ` are those of its process, secrets and all;
    None where it is not running or cannot be looked into, which `unread` says."""

    host: str
    record: WorkerRecord
    handle: UnitHandle | None
    state: UnitState | None
    pid: int | None
    pids: tuple[int, ...] = ()
    argv: tuple[str, ...] | None = None
    environ: Mapping[str, str] | None = None
    unread: str = ""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def alive(self) -> bool:
        """Whether anything of it is there."""
        return bool(self.pids)


def read_running(fleet: Fleet, records: Sequence[tuple[str, StackRecord]]) -> tuple[Running, ...]:
    """Every worker of a stack, looked at once.

    Raises:
        HostUnreachable
    """
    return tuple(_read(fleet[host], worker) for host, record in records for worker in record.workers)


def _read(place: Place, worker: WorkerRecord) -> Running:
    handle = worker.handle or place.supervisor.find(worker.unit)
    if handle is None:
        return Running(place.name, worker, None, None, None)
    status = place.supervisor.status(handle)
    ours = status.state not in {UnitState.FOREIGN, UnitState.REBOOTED}
    found = Running(place.name, worker, handle, status.state, status.main_pid, status.pids if ours else ())
    if status.state is not UnitState.RUNNING or status.main_pid is None:
        return found
    try:
        return replace(found, argv=cmdline(place.host, status.main_pid), environ=environ(place.host, status.main_pid))
    except (FileNotFoundError, PermissionError, OperationFailed) as error:
        return replace(found, unread=str(error))


def as_before(stack: Stack, running: Sequence[Running]) -> tuple[Worker, ...] | None:
    """The workers that could be started again just as they were recorded; None where a secret of theirs is lost.

    The records have fingerprints in place of secrets. The secret is taken from the process, or from `stack`, the plan.
    """
    workers: list[Worker] = []
    for was in running:
        plan = next((worker for worker in stack.workers if worker.name == was.name), None)
        argv = _argv(was, plan)
        env = _env(was, plan)
        if argv is None or env is None or plan is None:
            return None
        workers.append(
            replace(
                plan,
                host=was.host,
                unit=was.record.unit,
                argv=argv,
                env=env,
                listen=was.record.listen,
                port=was.record.port,
                ports=was.record.ports,
            )
        )
    return tuple(workers)


def _env(was: Running, plan: Worker | None) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for name, stored in was.record.env.items():
        if not has_fingerprint(stored):
            found[name] = stored
            continue
        sources = (was.environ or {}, plan.env if plan is not None else {})
        values = (source[name] for source in sources if name in source)
        secret = next((value for value in values if stands_for(stored, name, value)), None)
        if secret is None:
            return None
        found[name] = secret
    return found


def _argv(was: Running, plan: Worker | None) -> tuple[str, ...] | None:
    stored = was.record.argv
    if not any(map(has_fingerprint, stored)):
        return stored
    head = stored[: len(stored) - len(planned_tail(stored))]
    for whole in ((*head, *was.argv) if was.argv else (), plan.argv if plan is not None else ()):
        if argv_stands_for(stored[1:], whole[1:]):
            return (stored[0], *whole[1:])
    return None


def where_they_run(workers: Iterable[Worker], running: Sequence[Running]) -> tuple[Worker, ...]:
    """Those of the plan that are alive, with the addresses under which they answer now."""
    alive = {one.name: one for one in running if one.alive}
    return tuple(
        replace(worker, host=one.host, listen=one.record.listen, port=one.record.port)
        for worker in workers
        if (one := alive.get(worker.name)) is not None
    )


def engines_of(running: Sequence[Running]) -> tuple[Running, ...]:
    """Those that run SGLang."""
    return tuple(one for one in running if one.record.role != ROUTER)


def router_of(running: Sequence[Running]) -> Running | None:
    """The router, where the stack has one."""
    return next((one for one in running if one.record.role == ROUTER), None)
