"""How each step of a restart is carried out, and how it knows that there is nothing to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dsv4ctl.errors import DeadlineExceeded, OperationFailed, VerificationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.plan import Action, Facts, Step
from dsv4ctl.probe.conduct import Conduct, Record, questions_of
from dsv4ctl.probe.hops import Caller, headers_of
from dsv4ctl.probe.link import Endpoint
from dsv4ctl.probe.outcome import Exchange
from dsv4ctl.probe.wire import Dialler
from dsv4ctl.procfs import listeners
from dsv4ctl.restart.evidence import keep_evidence
from dsv4ctl.restart.gpus import GpuUse, not_given_back, read_gpu_use
from dsv4ctl.restart.patch_table import Table, differences, running_table
from dsv4ctl.restart.pending import Pending, PendingStore, Phase
from dsv4ctl.restart.plan import Scope
from dsv4ctl.restart.router import Registered, RouterWorkers
from dsv4ctl.restart.running import Running
from dsv4ctl.restart.traffic import Held, abort_all, drain, nothing_left, outstanding
from dsv4ctl.serve import ServeContext, Serving
from dsv4ctl.stack import Worker
from dsv4ctl.state import StackRecord
from dsv4ctl.stop import Stopping
from dsv4ctl.waiting import wait_until

_HTTP_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.3
_TOLD = 3
_ERRORS_ALL = "abort-is-an-error"
"""The patch without which SGLang answers an aborted request with status 200 and half a text."""


@dataclass(frozen=True)
class Before:
    """What was there when the restart began: the workers that are ended first, what their GPUs held, whether an abort
    of theirs reaches a client as an error, and the record of each host."""

    running: tuple[Running, ...]
    gpus: Mapping[str, tuple[GpuUse, ...]]
    abort_is_error: bool
    records: tuple[tuple[str, StackRecord], ...]


class Restarting:
    """One restart being carried out. Keeps on disk how far it has come."""

    def __init__(
        self,
        scope: Scope,
        context: ServeContext,
        before: Before,
        pending: Pending,
        tables: Mapping[str, Table],
        *,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        """`on_trouble`: how far it has come is written down where that is possible, and else told: on the way out of a
        failure that matters less than going on."""
        self.scope = scope
        self.context = context
        self.before = before
        self.pending = pending
        self._tables = tables
        self._on_trouble = on_trouble
        self._store = PendingStore(self.entry, pending.stack)
        self._serving: Serving | None = None
        leaving = [
            (host, replace(record, workers=tuple(w for w in record.workers if w.name in scope.leaving)))
            for host, record in before.records
        ]
        self.stopping = Stopping(context.fleet, leaving, sleep=context.interrupts.sleep)

    @property
    def fleet(self) -> Fleet:
        return self.context.fleet

    @property
    def entry(self) -> Place:
        """The host that clients talk to; what is under way is written down there."""
        return self.fleet[self.scope.stack.entry.host]

    @property
    def serving(self) -> Serving:
        """The new engines as they are started. Made when the old ones are gone: it begins with new records."""
        if self._serving is None:
            self._serving = Serving(self.context)
            self._serving.begin()
        return self._serving

    def close(self) -> None:
        """End the watch over what was started."""
        if self._serving is not None:
            self._serving.watch.close()

    def mark(self, step: Step, phase: Phase | None = None, **more: object) -> None:
        """Write down how far this has come.

        Raises:
            OperationFailed: it cannot be written; nothing goes on without.
        """
        changed = {"step": step.id, "phase": phase or self.pending.phase, **more}
        self.pending = replace(self.pending, **changed)  # type: ignore[arg-type]
        try:
            self._store.save(self.pending)
        except OperationFailed as error:
            if self._on_trouble is None:
                raise
            self._on_trouble(f"how far this has come is not written down: {error}")

    def finish(self) -> None:
        """It has proven itself: the stack is ready, and nothing more is under way."""
        self.serving.note_shm(ready=True)
        self.forget()

    def forget(self) -> None:
        """Nothing is under way any more."""
        for place in self.fleet.values():
            PendingStore(place, self.pending.stack).delete()

    def action_for(self, step: Step) -> Action:
        """How a step of the plan is carried out."""
        kind, _, name = step.id.partition(":")
        if kind in _QUIET:
            return _Quiet(self, step)
        if kind in _ENDING:
            return _Ending(self, self.fleet[step.host], kind, step)
        if kind in _PROVING:
            return _Proving(self, step)
        return _Serve(self, step, self._started_before(kind, name))

    def _started_before(self, kind: str, name: str) -> bool:
        return kind == "start" and name in self.context.kept

    def router(self, client: object, url: str) -> RouterWorkers:
        return RouterWorkers(client, url, f"the router on {self.entry.name}", self.context.interrupts.sleep)  # type: ignore[arg-type]

    def held(self, workers: Sequence[Worker]) -> tuple[Held, ...]:
        """What these engines have now."""
        return outstanding(self.fleet, workers)

    def leaving_workers(self) -> tuple[Worker, ...]:
        """Those that are ended first, as far as they are alive: as the plan names them, where they answer now."""
        alive = {one.name: one for one in self.before.running if one.alive and one.name in self.scope.leaving}
        return tuple(
            replace(
                worker,
                host=alive[worker.name].host,
                listen=alive[worker.name].record.listen,
                port=alive[worker.name].record.port,
            )
            for worker in self.scope.stack.engines
            if worker.name in alive
        )

    def urls_leaving(self) -> set[str]:
        """The URLs under which the router knows those that are ended."""
        return {
            f"http://{one.record.listen}:{one.record.port}"
            for one in self.before.running
            if one.name in self.scope.leaving or one.name in {worker.name for worker in self.scope.engines}
        }

    def table_of(self, worker: Worker) -> Table:
        """The patches that a worker should have."""
        return self._tables.get(worker.name, {})


_QUIET = frozenset({"evidence", "cordon", "drain", "abort"})
_ENDING = frozenset({"note", "end", "ended", "kill", "gone"})
_PROVING = frozenset({"pair", "idle", "patches", "uncordon", "traffic"})


@dataclass(frozen=True)
class _Quiet:
    """Before anything is ended."""

    restarting: Restarting
    step: Step

    def already(self) -> str | None:
        restarting = self.restarting
        if self.step.id.startswith("evidence:"):
            folder = restarting.pending.evidence.get(self.step.host, "")
            return f"it is in {folder}, from before this was cut off" if restarting.pending.phase != "serving" else None
        if self.step.id == "cordon":
            return None
        return None if restarting.leaving_workers() else "no engine that would be ended is running"

    def run(self) -> Facts:
        restarting, step = self.restarting, self.step
        if step.id.startswith("evidence:"):
            return self._evidence()
        if step.id == "cordon":
            return self._cordon()
        workers = restarting.leaving_workers()
        restarting.mark(step)
        if step.id == "drain":
            ended, held = drain(
                lambda: restarting.held(workers), within_s=step.deadline_s, sleep=restarting.context.interrupts.sleep
            )
            return {"drained": ended, "left": [str(one) for one in held if one.requests != 0]}
        return self._abort(workers)

    def _evidence(self) -> Facts:
        restarting = self.restarting
        place = restarting.fleet[self.step.host]
        folder = restarting.pending.evidence[self.step.host]
        restarting.mark(self.step)
        kept = keep_evidence(place, restarting.before.running, folder)
        return {"folder": kept.folder, "files": kept.files, "missing": kept.missing}

    def _cordon(self) -> Facts:
        restarting, entry = self.restarting, self.restarting.entry
        router = restarting.scope.router
        assert router is not None
        with entry.host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
            workers = restarting.router(client, router.url)
            urls = restarting.urls_leaving()
            there = tuple(worker for worker in workers.listed() if worker.base in urls)
            # Written down before it is done: who goes on after us has to know what to put in again.
            restarting.mark(self.step, "cordoned", router=there or restarting.pending.router)
            workers.remove(urls, deadline_s=self.step.deadline_s)
        return {"taken_out": [worker.base for worker in there]}

    def _abort(self, workers: Sequence[Worker]) -> Facts:
        restarting = self.restarting
        held = restarting.held(workers)
        if nothing_left(held):
            return {"aborted": 0}
        facts: dict[str, object] = {"left": [str(one) for one in held]}
        if not restarting.before.abort_is_error:
            # A broken connection is an error that every client sees; half a text with status 200 is not.
            return {**facts, "aborted": 0, "why_not": f"without {_ERRORS_ALL} it would be half an answer"}
        said = abort_all(restarting.fleet, workers)
        ended, after = drain(
            lambda: restarting.held(workers), within_s=self.step.deadline_s, sleep=restarting.context.interrupts.sleep
        )
        most = max((one.requests or 0 for one in held), default=0)
        facts |= {"aborted": most, "ended": ended, "refused": {name: why for name, why in said.items() if why}}
        return facts if ended else {**facts, "still": [str(one) for one in after if one.requests != 0]}


@dataclass(frozen=True)
class _Ending:
    """Ending the engines of one host, and the proof."""

    restarting: Restarting
    place: Place
    kind: str
    step: Step

    def already(self) -> str | None:
        restarting = self.restarting
        there = [one for one in restarting.before.running if one.name in restarting.scope.leaving and one.alive]
        if self.kind == "gone":
            return (
                "the engines that are there were started by this restart"
                if restarting.context.kept.keys() & {w.name for w in restarting.scope.engines}
                else None
            )
        return None if there else "no engine that would be ended is running"

    def run(self) -> Facts:
        stopping, place = self.restarting.stopping, self.place
        if self.kind == "note":
            return stopping.note(place)
        if self.kind == "end":
            self.restarting.mark(self.step, "ending")
            asked = [stopping.terminate(place, routers=routers)["asked"] for routers in (True, False)]
            return {"asked": [*asked[0], *asked[1]]}
        if self.kind == "ended":
            return stopping.drain(place, self.step.deadline_s)
        if self.kind == "kill":
            return stopping.kill(place, self.step.deadline_s)
        return self._gone()

    def _gone(self) -> Facts:
        restarting, place, step = self.restarting, self.place, self.step
        restarting.mark(step, "ending")
        proof = restarting.stopping.prove(place)
        ours = [pid for one in restarting.before.running if one.host == place.name for pid in one.pids]
        gpus = self._gpus_free(ours)
        self._ports_free()
        restarting.stopping.forget_units(place)
        restarting.mark(step, "down")
        return {"removed_segments": proof["removed_segments"], "gpus": gpus}

    def _gpus_free(self, ours: Sequence[int]) -> int:
        restarting, place = self.restarting, self.place
        before = restarting.before.gpus.get(place.name, ())
        wanted = {int(gpu) for worker in restarting.scope.engines for gpu in worker.gpus if str(gpu).isdigit()}
        if not before or not wanted:
            return 0
        left: tuple[str, ...] = ()

        def free() -> bool:
            nonlocal left
            left = not_given_back(before, read_gpu_use(place.host), wanted, ours)
            return not left

        try:
            wait_until(
                free,
                deadline_s=self.step.deadline_s,
                interval_s=_LOOK_EVERY_S,
                what=f"the memory of the GPUs on {place.name} to be free",
                sleep=restarting.context.interrupts.sleep,
            )
        except DeadlineExceeded as error:
            raise VerificationFailed(
                error.what,
                why="; ".join(left),
                hint="see `nvidia-smi` there; then run this again: it goes on from here",
            ) from error
        return len(wanted)

    def _ports_free(self) -> None:
        place = self.place
        wanted = {
            port: f"the {purpose} port of {worker.name}"
            for worker in self.restarting.scope.engines
            if worker.host == place.name
            for purpose, port in worker.ports.items()
        }
        held = [listener for listener in listeners(place.host) if listener.port in wanted]
        if held:
            words = ", ".join(
                f"{listener.port} ({wanted[listener.port]}) by {f'pid {listener.pid}' if listener.pid else 'somebody'}"
                for listener in held
            )
            raise VerificationFailed(
                f"ports on {place.name} are held that the new engines need: {words}",
                hint="the old engines are gone; free the ports and run this again, it goes on from here",
            )


@dataclass(frozen=True)
class _Serve:
    """Starting, awaiting and reading back a worker: as `serve` does it."""

    restarting: Restarting
    step: Step
    kept: bool

    def already(self) -> str | None:
        if self.kept:
            return "it was started by this restart, before that was cut off"
        if self.step.id.startswith("model:"):
            return self._action().already()
        return None

    def run(self) -> Facts:
        if self.step.id.startswith("start:"):
            self.restarting.mark(self.step, "starting")
        return self._action().run()

    def _action(self) -> Action:
        restarting = self.restarting
        if self.step.id.startswith("model:"):
            # Nothing has been ended, so there is nothing to begin.
            return Serving(restarting.context).action_for(self.step)
        return restarting.serving.action_for(self.step)


@dataclass(frozen=True)
class _Proving:
    """The proof that what was started serves, and letting the traffic in."""

    restarting: Restarting
    step: Step

    def already(self) -> str | None:
        return None

    def run(self) -> Facts:
        kind, _, name = self.step.id.partition(":")
        if kind == "pair":
            self.restarting.mark(self.step, "proving")
            return self._pair(name)
        if kind == "idle":
            return self._idle()
        if kind == "patches":
            return self._patches(name)
        if kind == "uncordon":
            return self._uncordon()
        return self._traffic()

    def _pair(self, name: str) -> Facts:
        restarting = self.restarting
        hop = next(hop for hop in restarting.scope.hops if hop.name == name)
        context = restarting.context
        workers = {worker.name: worker for worker in restarting.scope.stack.workers}
        questions = replace(
            questions_of(restarting.scope.stack.served_model, context.canary),
            headers=headers_of(flag_of(workers[hop.server.name].argv, "--api-key")),
        )
        record = Record(lambda _: None)
        diallers = {
            place.host: Dialler(restarting.fleet[place.host].host, context.interrupts.check) for place in hop.places
        }
        try:
            Conduct(
                questions,
                lambda hop: Caller(hop, lambda p: Endpoint(p.name, p.url, diallers[p.host]), context.rng),
                record,
                context.interrupts,
                context.rng,
            ).walk((hop,))
        finally:
            for dialler in diallers.values():
                dialler.close()
        wrong = [exchange for exchange in record.exchanges if exchange.failed or not exchange.seen]
        if wrong:
            raise VerificationFailed(
                f"{name} answered {len(record.exchanges) - len(wrong)} of {len(record.exchanges)} generations rightly",
                why="; ".join(dict.fromkeys(_words(exchange) for exchange in wrong)),
            )
        return {"seconds": [round(exchange.reply.times.ended_s, 3) for exchange in record.exchanges]}

    def _idle(self) -> Facts:
        restarting = self.restarting
        # Of an engine that runs on, others may be using it: only what was started has to be at rest.
        workers = restarting.scope.engines
        ended, held = drain(
            lambda: restarting.held(workers),
            within_s=self.step.deadline_s,
            sleep=restarting.context.interrupts.sleep,
        )
        if not ended:
            raise VerificationFailed(
                "requests are left in engines that should be at rest",
                why="; ".join(str(one) for one in held if one.requests != 0),
            )
        return {"engines": len(workers)}

    def _patches(self, name: str) -> Facts:
        restarting = self.restarting
        worker = next(worker for worker in restarting.scope.engines if worker.name == name)
        with restarting.fleet[worker.host].host.http(timeout_s=self.step.deadline_s) as client:
            running = running_table(client, worker.url)
        if wrong := differences(restarting.table_of(worker), running):
            more = f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
            why = "; ".join(wrong[:_TOLD]) + more
            raise VerificationFailed(f"{name} does not have the patches it should have", why=why)
        return {"applied": sum(status == "applied" for status in running.values()), "patches": len(running)}

    def _uncordon(self) -> Facts:
        restarting = self.restarting
        router = restarting.scope.router
        assert router is not None
        restarting.mark(self.step)
        wanted = registered(restarting.scope.engines, restarting.pending.router)
        with restarting.entry.host.http(timeout_s=_HTTP_TIMEOUT_S) as client:
            restarting.router(client, router.url).add(wanted, deadline_s=self.step.deadline_s)
        return {"put_in": [worker.base for worker in wanted]}

    def _traffic(self) -> Facts:
        restarting, stack = self.restarting, self.restarting.scope.stack
        restarting.mark(self.step)
        action = restarting.serving.action_for(
            Step("canary:small", self.step.title, stack.entry.host, self.step.deadline_s)
        )
        return action.run()


def registered(engines: Sequence[Worker], was: Sequence[Registered]) -> tuple[Registered, ...]:
    """What to put into the router for these engines: as they were in it, or as a plan names them."""
    known = {worker.base: worker for worker in was}
    found: list[Registered] = []
    for engine in engines:
        more = {"bootstrap_port": engine.ports["bootstrap"]} if "bootstrap" in engine.ports else {}
        kind = engine.role if engine.role in {"prefill", "decode"} else "regular"
        old = known.get(engine.url)
        found.append(Registered("", engine.url, kind, True, {**(old.more if old else {}), **more}))
    return tuple(found)


def flag_of(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line; None where it is not given."""
    for at, word in enumerate(argv):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
    return None


def _words(exchange: Exchange) -> str:
    return f"{exchange.reply.outcome}: {exchange.reply.detail}"
