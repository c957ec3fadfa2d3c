"""The plan of a restart, as data: what --dry-run prints, and what is carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.plan import Step
from dsv4ctl.probe.hops import Hop, covering, pairs_of
from dsv4ctl.serve_plan import bring_up_steps, model_steps, read_back_step
from dsv4ctl.stack import Stack, Worker

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Canary

EVIDENCE_DEADLINE_S = 60.0
_ROUTER_DEADLINE_S = 15.0
_ABORT_DEADLINE_S = 5.0
_SIGNAL_DEADLINE_S = 10.0
_KILL_DEADLINE_S = 10.0
# A CUDA context of a killed process took more than 15 s to go (https://github.com/smg-project/smg/issues/2464).
_GONE_DEADLINE_S = 60.0
_IDLE_DEADLINE_S = 15.0
_PATCHES_DEADLINE_S = 15.0


@dataclass(frozen=True)
class Scope:
    """What a restart is about.

    `stack` is the plan of everything; `engines` are those of it that are started anew, `leaving` names what is ended
    first, `hosts` are all on which something is ended or started; evidence is kept there and on the entry's.
    `replace_router`: the router does not answer, so it
    is started anew as well; else it stays, and the engines are taken out of it and put in again.
    """

    stack: Stack
    engines: tuple[Worker, ...]
    leaving: tuple[str, ...]
    hosts: tuple[str, ...]
    replace_router: bool
    drain_s: float
    grace_s: float

    @property
    def router(self) -> Worker | None:
        """The router of the stack, if it has one."""
        entry = self.stack.entry
        return entry if entry not in self.stack.engines else None

    @property
    def started_anew(self) -> tuple[Worker, ...]:
        """All that is started: the engines, and the router where that is replaced."""
        return (*self.engines, self.router) if self.router is not None and self.replace_router else self.engines

    @property
    def evidence_hosts(self) -> tuple[str, ...]:
        """Where evidence is kept."""
        return tuple(dict.fromkeys((*self.hosts, self.stack.entry.host)))

    @property
    def hops(self) -> tuple[Hop, ...]:
        """As few pairs as touch every engine; the servers, where they do not disaggregate."""
        return covering(pairs_of(self.stack.workers))


def co_restart_plan(scope: Scope, canary: "Canary") -> tuple[Step, ...]:
    """Every step, in order. Pure."""
    return (
        *model_steps(scope.stack),
        *(
            _on(host, "evidence", "keep evidence of what runs on {}", EVIDENCE_DEADLINE_S)
            for host in scope.evidence_hosts
        ),
        *_quiet_steps(scope),
        *ending_steps(scope),
        *starting_steps(scope, canary),
    )


def _quiet_steps(scope: Scope) -> tuple[Step, ...]:
    entry, names = scope.stack.entry.host, ", ".join(scope.leaving) or "the engines"
    cordon = Step("cordon", f"take {names} out of the router", entry, _ROUTER_DEADLINE_S)
    wait = f"wait at most {scope.drain_s:g} s for the requests that {names} have"
    return (
        *((cordon,) if scope.router is not None and not scope.replace_router else ()),
        Step("drain", wait, entry, scope.drain_s),
        Step("abort", "end what is left of them with an error", entry, _ABORT_DEADLINE_S),
    )


def ending_steps(scope: Scope) -> tuple[Step, ...]:
    """The steps that end the engines, and prove that nothing of them is left."""
    titles = (
        ("note", "note the shared memory in use on {}", _SIGNAL_DEADLINE_S),
        ("end", "ask the engines on {} to end", _SIGNAL_DEADLINE_S),
        ("ended", "wait until they have ended on {}", scope.grace_s),
        ("kill", "kill what is left of them on {}", _KILL_DEADLINE_S),
        ("gone", "prove that no process, port, shared or GPU memory of them is left on {}", _GONE_DEADLINE_S),
    )
    return tuple(_on(host, kind, title, deadline_s) for kind, title, deadline_s in titles for host in scope.hosts)


def starting_steps(scope: Scope, canary: "Canary") -> tuple[Step, ...]:
    """The steps that start the engines, prove them before anybody else may use them, and let the traffic in."""
    stack, entry = scope.stack, scope.stack.entry
    steps = [*bring_up_steps(stack, scope.engines)]
    for hop in scope.hops:
        title = f"a small and a large generation by {hop.name}, asked directly, answers checked"
        steps.append(Step(f"pair:{hop.name}", title, hop.server.host, 4 * canary.deadline_s))
    if scope.router is not None:
        # Without a router nothing keeps clients away from an engine that answers.
        steps.append(Step("idle", "no request is left in any engine", entry.host, _IDLE_DEADLINE_S))
    steps += [read_back_step(worker) for worker in scope.engines]
    steps += [
        Step(
            f"patches:{worker.name}", f"{worker.name} has the patches it should have", worker.host, _PATCHES_DEADLINE_S
        )
        for worker in scope.engines
    ]
    if scope.router is not None and scope.replace_router:
        steps += [*bring_up_steps(stack, (scope.router,)), read_back_step(scope.router)]
    elif scope.router is not None:
        names = ", ".join(worker.name for worker in scope.engines)
        steps.append(Step("uncordon", f"put {names} into the router again", entry.host, _ROUTER_DEADLINE_S))
    steps.append(Step("traffic", f"a generation through {entry.url}, answer checked", entry.host, canary.deadline_s))
    return tuple(steps)


def _on(host: str, kind: str, title: str, deadline_s: float) -> Step:
    return Step(f"{kind}:{host}", title.format(host), host, deadline_s)


def plan_rows(steps: Sequence[Step]) -> list[dict[str, object]]:
    """The steps for a program."""
    return [{"id": step.id, "title": step.title, "host": step.host, "deadline_s": step.deadline_s} for step in steps]
