"""The proof that what was started serves, and letting the traffic in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv4ctl.engine_keys import headers_by
from dsv4ctl.errors import CannotLook, DeadlineExceeded, VerificationFailed
from dsv4ctl.plan import Facts, Step
from dsv4ctl.probe.conduct import Conduct, Questions, Record, questions_of
from dsv4ctl.probe.hops import Caller, Hop
from dsv4ctl.probe.link import Endpoint
from dsv4ctl.probe.outcome import Exchange
from dsv4ctl.probe.wire import Dialler
from dsv4ctl.restart.patch_table import Table, differences, running_table, tells
from dsv4ctl.restart.restarting import HTTP_TIMEOUT_S, Restarting
from dsv4ctl.restart.router import Registered
from dsv4ctl.restart.traffic import drain
from dsv4ctl.stack import Worker
from dsv4ctl.waiting import wait_until

PROVING = frozenset({"pair", "idle", "patches", "uncordon", "traffic"})
"""Kinds of steps that prove and let in."""

_TOLD = 3
# So often a proof is asked for again because the connection to the host was lost meanwhile.
_LOSSES = 2


@dataclass(frozen=True)
class Proving:
    """The steps between an engine that answers and a client that is answered."""

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
        before = self._losses(hop)
        questions = replace(
            questions_of(restarting.scope.stack.served_model, context.canary),
            headers=headers_by(workers[hop.server.name].argv),
        )
        exchanges = self._asked(hop, questions)
        for _ in range(_LOSSES):
            lost = self._losses(hop)
            if lost == before or not any(map(_is_wrong, exchanges)):
                break
            # What our own connection cut off says nothing of the engines.
            before = lost
            exchanges = self._asked(hop, questions)
        wrong = [exchange for exchange in exchanges if _is_wrong(exchange)]
        if wrong:
            raise VerificationFailed(
                f"{name} answered {len(exchanges) - len(wrong)} of {len(exchanges)} generations rightly",
                why="; ".join(dict.fromkeys(_words(exchange) for exchange in wrong)),
            )
        return {"seconds": [round(exchange.reply.times.ended_s, 3) for exchange in exchanges]}

    def _losses(self, hop: Hop) -> int:
        return sum(self.restarting.fleet[host].host.losses for host in {place.host for place in hop.places})

    def _asked(self, hop: Hop, questions: Questions) -> tuple[Exchange, ...]:
        restarting, context = self.restarting, self.restarting.context
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
        return record.exchanges

    def _idle(self) -> Facts:
        restarting = self.restarting
        # Of an engine that runs on, others may be using it: only what was started has to be at rest.
        workers = restarting.scope.engines
        ended, held = drain(
            lambda answer_s: tuple(one for one in restarting.held(workers, answer_s) if not one.mute),
            within_s=self.step.deadline_s,
            sleep=restarting.context.interrupts.sleep,
        )
        if not ended:
            raise VerificationFailed(
                "requests are left in engines that should be at rest",
                why="; ".join(str(one) for one in held if one.requests != 0),
            )
        return {"engines": len(workers), "at_rest": [one.worker for one in held]}

    def _patches(self, name: str) -> Facts:
        restarting = self.restarting
        worker = next(worker for worker in restarting.scope.engines if worker.name == name)
        expected = restarting.table_of(worker)
        if not tells(worker):
            return {"unseen": f"{name} exports no metrics"}
        running = self._table(worker)
        if wrong := differences(expected, running):
            more = f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
            why = "; ".join(wrong[:_TOLD]) + more
            raise VerificationFailed(f"{name} does not have the patches it should have", why=why)
        return {"applied": sum(status == "applied" for status in running.values()), "patches": len(running)}

    def _table(self, worker: Worker) -> Table:
        """What it says. Once more while there is time: it has just answered, so a silence is that of a connection."""
        restarting = self.restarting
        said: list[CannotLook] = []

        def table() -> tuple[Table] | None:
            with restarting.fleet[worker.host].host.http(timeout_s=HTTP_TIMEOUT_S) as client:
                try:
                    return (running_table(client, worker.url),)
                except CannotLook as error:
                    said.append(error)
                    return None

        try:
            (found,) = wait_until(
                table,
                deadline_s=self.step.deadline_s,
                what=f"{worker.name} to say which patches it applied",
                sleep=restarting.context.interrupts.sleep,
            )
        except DeadlineExceeded as error:
            what = f"{worker.name} does not say which patches it applied"
            raise VerificationFailed(what, why=str(said[-1])) from error
        return found

    def _uncordon(self) -> Facts:
        restarting = self.restarting
        router = restarting.scope.router
        assert router is not None
        restarting.mark(self.step)
        wanted = registered(restarting.scope.engines, restarting.pending.router)
        with restarting.entry.host.http(timeout_s=HTTP_TIMEOUT_S) as client:
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


def _is_wrong(exchange: Exchange) -> bool:
    return exchange.failed or not exchange.seen


def _words(exchange: Exchange) -> str:
    return f"{exchange.reply.outcome}: {exchange.reply.detail}"
