"""Bringing a stack up: how each step of its plan is carried out and checked."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from dsv4ctl.canary import ask, make_prompt
from dsv4ctl.engine_keys import headers_by
from dsv4ctl.errors import DeadlineExceeded, HostUnreachable, OperationFailed, VerificationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.gpu_indices import IndexMemory
from dsv4ctl.observe import Watch, WorkerView, death, logs_command
from dsv4ctl.plan import Action, Always, Facts, Step
from dsv4ctl.procfs import descendants, processes, shm_segments
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.signals import Interrupts
from dsv4ctl.stack import ModelSource, Stack, Worker
from dsv4ctl.state import StackRecord, WorkerRecord, planned
from dsv4ctl.supervisors.base import UnitHandle, UnitSpec, UnitState
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Canary

T = TypeVar("T")

_LOOK_EVERY_S = 0.4
_ANSWER_HOLDS_S = 10.0
# A start takes minutes; a connection that comes back within this long does not end it.
_BLIND_FOR_S = 30.0
_DIRECTORY_DEADLINE_S = 30.0


@dataclass(frozen=True)
class ServeContext:
    """What the steps of one start share. `kept` are the workers of the stack that run on as they are, by name, and
    `sets` what is set on top of the profile, as it is stored."""

    stack: Stack
    canary: "Canary"
    fleet: Fleet
    interrupts: Interrupts
    rng: random.Random
    on_look: Callable[[Sequence[WorkerView]], None]
    now: Callable[[], datetime]
    profile_name: str
    sets: tuple[str, ...] = ()
    kept: Mapping[str, WorkerRecord] = field(default_factory=dict)


class Serving:
    """One stack being brought up. Knows the record of every host and keeps it on that host's disk as it grows."""

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self.records: dict[str, StackRecord] = {
            host: _record(context, host) for host in dict.fromkeys(worker.host for worker in context.stack.workers)
        }
        self.watch = self._watch()
        self._waits: tuple[str, ...] = ()

    def _watch(self) -> Watch:
        # A router that runs on knows no workers while they start: it is no part of what is awaited.
        kept, workers = self._context.kept, self._context.stack.workers
        members = [
            (host, worker)
            for host, record in self.records.items()
            for worker in record.workers
            if worker.role != ROUTER or worker.name not in kept
        ]
        order = [worker.name for worker in workers]
        members.sort(key=lambda member: order.index(member[1].name) if member[1].name in order else len(order))
        return Watch(self._context.fleet, members, answer_holds_s=_ANSWER_HOLDS_S)

    def adopt(self, records: Mapping[str, StackRecord]) -> bool:
        """Watch what another dsv4ctl has started in the place of this. False: it is all as it was, nobody has."""
        if {host: record.workers for host, record in records.items()} == {
            host: record.workers for host, record in self.records.items()
        }:
            return False
        self.watch.close()
        self.records = dict(records)
        self.watch = self._watch()
        self.watch.proven = True
        return True

    def action_for(self, step: Step) -> Action:
        """How a step of `serve_plan` is carried out."""
        kind, _, name = step.id.partition(":")
        context = self._context
        if kind == "model":
            model = next(model for model in context.stack.models if model.host == name)
            return _MakeModel(context.fleet[name], model, step)
        if kind == "canary":
            return _Canary(context, name, step)
        worker = next(worker for worker in context.stack.workers if worker.name == name)
        if kind == "start":
            return _Start(self, context.fleet[worker.host], worker)
        if kind == "await":
            return _Await(self, context, worker, step)
        return _ReadBack(self, context.fleet[worker.host], worker)

    def begin(self) -> None:
        """Write the intention down, on every host, before anything is started: a crash of ours leaves no stranger."""
        for host, record in self.records.items():
            self._context.fleet[host].store.save(record)

    def started(self, place: Place, worker: Worker) -> None:
        """Start a worker, with an empty temporary directory, and record its unit."""
        make_directory(place, worker.env.get("TMPDIR"), worker.unit)
        home = place.site.home
        spec = UnitSpec(worker.unit, worker.argv, {"HOME": home, **worker.env}, cwd=home)
        handle = self._start(place, spec)
        record = self.records[place.name].with_handle(worker.name, handle)
        self.records[place.name] = record
        self.watch.update(next(entry for entry in record.workers if entry.name == worker.name))
        place.store.save(record)

    def _start(self, place: Place, spec: UnitSpec) -> UnitHandle:
        """Start a unit. When the connection is lost meanwhile, whether it was started is asked once it is back."""
        try:
            return place.supervisor.start(spec)
        except HostUnreachable:
            found = wait_until(
                lambda: self._answer(lambda: (place.supervisor.find(spec.name),)),
                deadline_s=_BLIND_FOR_S,
                what=f"{place.name} to answer again",
                interval_s=1.0,
                sleep=self._context.interrupts.sleep,
            )
            (handle,) = found
            if handle is not None and place.supervisor.status(handle).state is UnitState.RUNNING:
                return handle
            return place.supervisor.start(spec)

    @staticmethod
    def _answer(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except HostUnreachable:
            return None

    def record_of(self, worker: Worker) -> WorkerRecord:
        """What is recorded of a worker now."""
        return next(entry for entry in self.records[worker.host].workers if entry.name == worker.name)

    def look(self) -> tuple[WorkerView, ...]:
        """One look at everything, shown to the person.

        Raises:
            OperationFailed: a worker that was started is not running any more. Engines are named before the router,
                which merely suffers.
        """
        views = self.watch.look()
        self._context.on_look(views)
        waits = tuple(view.waits_for for view in views)
        if waits != self._waits:
            # A worker has come a phase further: the moments at which it makes shared memory.
            self._waits = waits
            self.note_shm()
        ended = [view for view in views if view.ended or (view.fatal and not view.answers)]
        if ended:
            dead = next((view for view in ended if view.first_error is not None), ended[0])
            raise death(dead, self._context.profile_name)
        return views

    def note_shm(self, *, ready: bool = False) -> None:
        """Record the shared memory that our processes hold: a crash would leave it behind. `ready`: all is proven."""
        self.watch.proven = self.watch.proven or ready
        for host, record in self.records.items():
            place = self._context.fleet[host]
            leaders = [worker.handle.pid for worker in record.workers if worker.handle is not None]
            pids = {*leaders, *descendants(processes(place.host), leaders)}
            seen = {segment.path for segment in shm_segments(place.host, pids) if not segment.deleted}
            noted = replace(record, ready=ready, shm=tuple(sorted(seen | set(record.shm))))
            if noted != record:
                self.records[host] = noted
                place.store.save(noted)

    def note_ready(self) -> None:
        """All is proven: record it, and what the GPU indices of the new workers mean, for the next start."""
        self.note_shm(ready=True)
        for name, place in self._context.fleet.items():
            new = [worker for worker in self._context.stack.on(name) if worker.name not in self._context.kept]
            IndexMemory(place, self._context.stack.name).remember(new)


def make_directory(place: Place, path: str | None, unit: str) -> None:
    """Make a worker's own temporary directory, empty. One that the profile names is its own affair.

    Raises:
        OperationFailed: the directory above belongs to somebody else: /tmp is everybody's.
    """
    root = place.site.tmp_root
    if path == f"{root}/{unit}":
        script = 'mkdir -p -m 700 -- "$1" && [ -O "$1" ] && [ ! -L "$1" ] && rm -rf -- "$2" && mkdir -m 700 -- "$2"'
        place.host.run(["sh", "-c", script, "sh", root, path], deadline_s=_DIRECTORY_DEADLINE_S)


def _record(context: ServeContext, host: str) -> StackRecord:
    stack = context.stack
    return StackRecord(
        stack=stack.name,
        profile=context.profile_name,
        supervisor=stack.supervisor,
        started_at=context.now().isoformat(timespec="seconds"),
        entry_url=stack.entry.url,
        served_model=stack.served_model,
        ready=False,
        workers=tuple(context.kept.get(worker.name) or planned(worker) for worker in stack.on(host)),
        sets=context.sets,
    )


@dataclass(frozen=True)
class _MakeModel:
    place: Place
    model: ModelSource
    step: Step

    def already(self) -> str | None:
        # The generator renames a finished directory into place, so its presence is its completeness.
        found = self.place.host.run(["test", "-f", f"{self.model.path}/config.json"], deadline_s=10.0, check=False)
        return f"{self.model.path} is there" if found.returncode == 0 else None

    def run(self) -> Facts:
        assert self.model.make is not None
        done = self.place.host.run(self.model.make, deadline_s=self.step.deadline_s)
        return {"seconds": round(done.duration_s, 3)}


@dataclass(frozen=True)
class _Start(Always):
    serving: Serving
    place: Place
    worker: Worker

    def run(self) -> Facts:
        self.serving.started(self.place, self.worker)
        handle = self.serving.record_of(self.worker).handle
        assert handle is not None
        return {"unit": handle.unit, "pid": handle.pid}


@dataclass(frozen=True)
class _Await(Always):
    serving: Serving
    context: ServeContext
    worker: Worker
    step: Step

    def run(self) -> Facts:
        """Wait; a host that cannot be asked for a moment is asked again."""
        blind_since: float | None = None

        def answering() -> WorkerView | None:
            """The worker once it answers; a host that is out of reach for too long ends the wait."""
            nonlocal blind_since
            try:
                views = self.serving.look()
            except HostUnreachable:
                now = time.monotonic()
                blind_since = now if blind_since is None else blind_since
                if now - blind_since > _BLIND_FOR_S:
                    raise
                return None
            blind_since = None
            view = next(view for view in views if view.name == self.worker.name)
            return view if view.answers else None

        try:
            view = wait_until(
                answering,
                deadline_s=self.step.deadline_s,
                interval_s=_LOOK_EVERY_S,
                what=f"{self.worker.name} on {self.worker.host} to answer on {self.worker.url}",
                sleep=self.context.interrupts.sleep,
            )
        except DeadlineExceeded as error:
            view = next(view for view in self.serving.watch.look() if view.name == self.worker.name)
            raise DeadlineExceeded(
                error.what,
                why=f"it waits for {view.waits_for}; the last line of its log is: {view.last_line or '(empty)'}",
                hint=f"{logs_command(self.worker.name, self.context.profile_name)}; "
                "a longer start_within_s in the profile if it is honest work",
            ) from error
        return {"pid": view.pid, "age_s": view.age_s}


@dataclass(frozen=True)
class _Canary(Always):
    context: ServeContext
    size: str
    step: Step

    def run(self) -> Facts:
        canary, stack = self.context.canary, self.context.stack
        tokens = canary.small_tokens if self.size == "small" else canary.large_tokens
        prompt = make_prompt(tokens, characters_per_token=canary.characters_per_token, rng=self.context.rng)
        place = self.context.fleet[stack.entry.host]
        with place.host.http(timeout_s=self.step.deadline_s) as client:
            # A router hands a client's key on to the engines.
            client.headers.update(headers_by(stack.engines[0].argv))
            try:
                answered = ask(client, stack.entry.url, stack.served_model, prompt, request=canary.request)
            except OperationFailed as error:
                raise VerificationFailed(f"the {self.size} generation failed: {error.what}", why=error.why) from error
        return {"seconds": round(answered.seconds, 3), "prompt_tokens": answered.prompt_tokens}


@dataclass(frozen=True)
class _ReadBack(Always):
    serving: Serving
    place: Place
    worker: Worker

    def run(self) -> Facts:
        """Compare what runs with its plan."""
        from dsv4ctl.drift import drift_of

        record = self.serving.record_of(self.worker)
        assert record.handle is not None
        status = self.place.supervisor.status(record.handle)
        if status.state is not UnitState.RUNNING or status.main_pid is None:
            raise VerificationFailed(f"{self.worker.name} on {self.worker.host} ended while it was being verified")
        try:
            drifts = drift_of(self.place.host, status.main_pid, record)
        except (FileNotFoundError, PermissionError) as error:
            raise VerificationFailed(
                f"what {self.worker.name} on {self.worker.host} runs with cannot be read back", why=str(error)
            ) from error
        if drifts:
            raise VerificationFailed(
                f"{self.worker.name} (pid {status.main_pid} on {self.worker.host}) does not run as planned",
                why="; ".join(str(drift) for drift in drifts),
            )
        return {"pid": status.main_pid, "variables": len(record.env), "arguments": len(record.argv)}
