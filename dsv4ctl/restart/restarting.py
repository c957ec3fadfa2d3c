"""One restart while it is carried out: what it is about, what was there, and how far it has come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.journal import NotWritten
from dsv4ctl.plan import Step
from dsv4ctl.restart.gpus import GpuUse
from dsv4ctl.restart.patch_table import Table
from dsv4ctl.restart.pending import Pending, PendingStore, Phase
from dsv4ctl.restart.plan import Scope
from dsv4ctl.restart.router import RouterWorkers
from dsv4ctl.restart.running import Running, where_they_run
from dsv4ctl.restart.traffic import ANSWER_WITHIN_S, Held, outstanding
from dsv4ctl.serve import ServeContext, Serving
from dsv4ctl.stack import Worker
from dsv4ctl.state import StackRecord
from dsv4ctl.stop import Stopping

if TYPE_CHECKING:
    import httpx

HTTP_TIMEOUT_S = 5.0
ABORT_PATCH = "abort-is-an-error"
"""The patch without which SGLang answers an aborted request with status 200 and half a text."""


@dataclass(frozen=True)
class Before:
    """What was there when the restart began: the workers that are ended first, what their GPUs held, whether an abort
    of theirs reaches a client as an error, and the record of each host. On the way back, `pids_of_old` are those of the
    engines that held the GPUs when that was looked at."""

    running: tuple[Running, ...]
    gpus: Mapping[str, tuple[GpuUse, ...]]
    abort_is_error: bool
    records: tuple[tuple[str, StackRecord], ...]
    pids_of_old: tuple[int, ...] = ()


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
            NotWritten: it cannot be written; nothing goes on without.
        """
        changed = {"step": step.id, "phase": phase or self.pending.phase, **more}
        pending = replace(self.pending, **changed)  # type: ignore[arg-type]
        try:
            self._store.save(pending)
        except OperationFailed as error:
            if self._on_trouble is None:
                raise NotWritten(error.what, why=error.why, hint=error.hint) from error
            self._on_trouble(f"how far this has come is not written down: {error}")
        self.pending = pending

    def finish(self) -> None:
        """It has proven itself: the stack is ready, and nothing more is under way."""
        self.serving.note_ready()
        self.forget()

    def forget(self) -> None:
        """Nothing is under way any more."""
        for place in self.fleet.values():
            PendingStore(place, self.pending.stack).delete()

    def router(self, client: "httpx.Client", url: str) -> RouterWorkers:
        """The workers of the stack's router; `client` connects on its host."""
        return RouterWorkers(client, url, f"the router on {self.entry.name}", self.context.interrupts.sleep)

    def held(self, workers: Sequence[Worker], within_s: float = ANSWER_WITHIN_S) -> tuple[Held, ...]:
        """What these engines have now."""
        return outstanding(self.fleet, workers, within_s=within_s)

    def leaving_workers(self) -> tuple[Worker, ...]:
        """Those that are ended first, as far as they are alive: as the plan names them, where they answer now."""
        leaving = [one for one in self.before.running if one.name in self.scope.leaving]
        return where_they_run(self.scope.stack.engines, leaving)

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
