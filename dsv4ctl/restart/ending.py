"""Until the old engines are gone: evidence, the closed door, requests that end, processes that end, and the proof."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.errors import DeadlineExceeded, VerificationFailed
from dsv4ctl.fleet import Place
from dsv4ctl.plan import Facts, Step
from dsv4ctl.preflight import check_ports
from dsv4ctl.procfs import commands_of, listeners
from dsv4ctl.restart.evidence import keep_evidence
from dsv4ctl.restart.gpus import indices_of, not_given_back, read_gpu_use
from dsv4ctl.restart.restarting import ABORT_PATCH, HTTP_TIMEOUT_S, Restarting
from dsv4ctl.restart.traffic import abort_all, drain, in_all, nothing_left
from dsv4ctl.stack import Worker
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    from dsv4ctl.restart.pending import Phase

QUIET = frozenset({"evidence", "cordon", "drain", "abort"})
"""Kinds of steps before anything is ended."""

ENDING = frozenset({"note", "end", "ended", "kill", "gone"})
"""Kinds of steps that end the engines."""

_LOOK_EVERY_S = 0.3
# Once the last engine has ended, a driver without persistence mode has to wake every card before it answers.
_GPUS_WITHIN_S = 20.0

_HALF_AN_ANSWER = f"not every engine says that it has {ABORT_PATCH}, without which it would be half an answer"


@dataclass(frozen=True)
class Quiet:
    """Before anything is ended."""

    restarting: Restarting
    step: Step

    def already(self) -> str | None:
        restarting = self.restarting
        if self.step.id.startswith("evidence:"):
            folder = restarting.pending.evidence[self.step.host]
            if restarting.pending.phase == "serving" or not self._is_there(folder):
                return None
            return f"it is in {folder}, from before this was cut off"
        if self.step.id == "cordon":
            return None
        return None if restarting.leaving_workers() else "no engine that would be ended is running"

    def _is_there(self, folder: str) -> bool:
        host = self.restarting.fleet[self.step.host].host
        return host.run(["test", "-d", folder], deadline_s=HTTP_TIMEOUT_S, check=False).returncode == 0

    def run(self) -> Facts:
        """Keep evidence, take out of the router, drain, or abort, as the step says."""
        restarting, step = self.restarting, self.step
        if step.id.startswith("evidence:"):
            return self._evidence()
        if step.id == "cordon":
            return self._cordon()
        workers = restarting.leaving_workers()
        restarting.mark(step)
        if step.id == "drain":
            ended, held = drain(
                lambda answer_s: restarting.held(workers, answer_s),
                within_s=step.deadline_s,
                sleep=restarting.context.interrupts.sleep,
            )
            return {"drained": ended, "left": [str(one) for one in held if one.requests != 0]}
        return self._abort(workers)

    def _evidence(self) -> Facts:
        restarting = self.restarting
        place = restarting.fleet[self.step.host]
        folder = restarting.pending.evidence[self.step.host]
        restarting.mark(self.step)
        workers = restarting.scope.stack.workers
        kept = keep_evidence(place, restarting.before.running, workers, folder, within_s=self.step.deadline_s)
        return {"folder": kept.folder, "files": kept.files, "missing": kept.missing}

    def _cordon(self) -> Facts:
        restarting, entry = self.restarting, self.restarting.entry
        router = restarting.scope.router
        assert router is not None
        with entry.host.http(timeout_s=HTTP_TIMEOUT_S) as client:
            workers = restarting.router(client, router.url)
            urls = restarting.urls_leaving()
            there = tuple(worker for worker in workers.listed() if worker.base in urls)
            # Written down before it is done: who goes on after us has to know what to put in again.
            # A restart that goes on where another was cut off may be further than that already.
            phase: Phase | None = "cordoned" if restarting.pending.phase == "serving" else None
            # What it took out is not there any more, and has to be put in again all the same.
            bases = {worker.base for worker in there}
            before = tuple(worker for worker in restarting.pending.router if worker.base not in bases)
            restarting.mark(self.step, phase, router=there + before)
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
            return {**facts, "aborted": 0, "why_not": _HALF_AN_ANSWER}
        said = abort_all(restarting.fleet, workers)
        ended, after = drain(
            lambda answer_s: restarting.held(workers, answer_s),
            within_s=self.step.deadline_s,
            sleep=restarting.context.interrupts.sleep,
        )
        refused = {name: why for name, why in said.items() if why}
        facts |= {"aborted": in_all(held) if len(refused) < len(said) else 0, "ended": ended, "refused": refused}
        return facts if ended else {**facts, "still": [str(one) for one in after if one.requests != 0]}


@dataclass(frozen=True)
class Ending:
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
        """Note, end, wait, kill, or prove it gone, as the step says."""
        stopping, place = self.restarting.stopping, self.place
        if self.kind == "note":
            return self._note()
        if self.kind == "end":
            self.restarting.mark(self.step, "ending")
            asked = [stopping.terminate(place, routers=routers)["asked"] for routers in (True, False)]
            return {"asked": [*asked[0], *asked[1]]}
        if self.kind == "ended":
            return stopping.drain(place, self.step.deadline_s)
        if self.kind == "kill":
            return stopping.kill(place, self.step.deadline_s)
        return self._gone()

    def _note(self) -> Facts:
        facts = self.restarting.stopping.note(self.place)
        # Written down: what is left of it after the end is ours, also to a run that goes on where this one is cut off.
        if (record := self.place.store.load(self.restarting.pending.stack)) is not None:
            self.place.store.save(replace(record, shm=tuple(sorted({*record.shm, *facts["segments"]}))))
        return facts

    def _gone(self) -> Facts:
        restarting, place, step = self.restarting, self.place, self.step
        restarting.mark(step, "ending")
        proof = restarting.stopping.prove(place)
        ours = [pid for one in restarting.before.running if one.host == place.name for pid in one.pids]
        ours += restarting.before.pids_of_old
        gpus = self._gpus_free(ours)
        restarting.stopping.forget_units(place)
        restarting.mark(step, "down")
        self._ports_free()
        return {"removed_segments": proof["removed_segments"], "gpus": gpus}

    def _gpus_free(self, ours: Sequence[int]) -> int:
        restarting, place = self.restarting, self.place
        before = restarting.before.gpus.get(place.name, ())
        wanted = indices_of(worker for worker in restarting.scope.engines if worker.host == place.name)
        if not before or not wanted:
            return 0
        left: tuple[str, ...] = ()

        def free() -> bool:
            nonlocal left
            left = not_given_back(before, read_gpu_use(place.host, within_s=_GPUS_WITHIN_S), wanted, ours)
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
                hint="see `nvidia-smi` there",
            ) from error
        return len(wanted)

    def _ports_free(self) -> None:
        place = self.place
        workers = [worker for worker in self.restarting.scope.started_anew if worker.host == place.name]
        ports = {port for worker in workers for port in worker.ports.values()}
        held = listeners(place.host)
        taken = check_ports(workers, held, commands_of(place.host, held, ports))
        if taken:
            raise VerificationFailed(
                f"the new engines cannot be started: {'; '.join(finding.message for finding in taken)}",
                hint=taken[0].remedy,
            )
