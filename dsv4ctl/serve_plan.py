"""The plan of a start, as data: what --dry-run prints and what `serve` carries out."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsv4ctl.plan import Step
from dsv4ctl.profile.gpus import shown
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.stack import ModelSource, Stack, Worker
from dsv4ctl.state import planned

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import Canary

_MODEL_DEADLINE_S = 120.0
_START_DEADLINE_S = 30.0
_READ_BACK_DEADLINE_S = 30.0


def serve_plan(stack: Stack, canary: "Canary") -> tuple[Step, ...]:
    """The steps that bring `stack` up and prove it, in order. Pure: --dry-run prints it, `serve` carries it out.

    The router comes last: it looks for a worker after 0, 1, 3, 6, 10, ... seconds, and would find one that came up a
    moment after a look only at the next.
    """
    routers = [worker for worker in stack.workers if worker not in stack.engines]
    return (
        *model_steps(stack),
        *bring_up_steps(stack, stack.engines),
        *bring_up_steps(stack, routers),
        _canary_step(stack, "small", canary.small_tokens, canary.deadline_s),
        _canary_step(stack, "large", canary.large_tokens, canary.deadline_s),
        *(read_back_step(worker) for worker in stack.workers),
    )


def model_steps(stack: Stack) -> tuple[Step, ...]:
    """The steps that make the models which have to be made."""
    return tuple(_model_step(model) for model in stack.models if model.make is not None)


def bring_up_steps(stack: Stack, workers: Sequence[Worker]) -> tuple[Step, ...]:
    """The steps that start workers and wait for them: one after the other where the stack says so, else all at once."""
    groups = [[worker] for worker in workers] if stack.staggered else [list(workers)]
    steps: list[Step] = []
    for group in groups:
        steps += [_start_step(worker) for worker in group]
        steps += [_await_step(worker, stack.start_within_s) for worker in group]
    return tuple(steps)


def read_back_step(worker: Worker) -> Step:
    """The step that compares what a worker runs with to its plan."""
    title = f"read back argv and environment of {worker.name}"
    return Step(f"readback:{worker.name}", title, worker.host, _READ_BACK_DEADLINE_S)


def paste_command(worker: Worker) -> str:
    """A command that starts the worker by hand, in the foreground of a terminal on its host. Secrets are fingerprints.

    One variable and one flag a line, so that a person can read it, compare it and comment on it.
    """
    variables = [shlex.quote(f"{name}={value}") for name, value in redact_env(worker.env).items()]
    text = " \\\n    ".join(["env", *variables])
    for position, word in enumerate(redact_argv(worker.argv)):
        new_line = position == 0 or word.startswith("--")
        text += (" \\\n    " if new_line else " ") + shlex.quote(word)
    return text


def _model_step(model: ModelSource) -> Step:
    assert model.make is not None
    return Step(f"model:{model.host}", f"make the model {model.path}", model.host, _MODEL_DEADLINE_S, (model.make,))


def _start_step(worker: Worker) -> Step:
    script = ("env", *(f"{name}={value}" for name, value in redact_env(worker.env).items()), *redact_argv(worker.argv))
    return Step(f"start:{worker.name}", f"start {worker.name}", worker.host, _START_DEADLINE_S, (script,))


def _await_step(worker: Worker, within_s: float) -> Step:
    return Step(f"await:{worker.name}", f"wait until {worker.name} answers on {worker.url}", worker.host, within_s)


def _canary_step(stack: Stack, size: str, tokens: int, deadline_s: float) -> Step:
    title = f"{size} generation of about {tokens} tokens through {stack.entry.url}, answer checked"
    return Step(f"canary:{size}", title, stack.entry.host, deadline_s)


def script_of(stack: Stack) -> str:
    """The stack as shell lines, each under a comment that says what it is and where it runs."""
    lines: list[str] = []
    for model in stack.models:
        if model.make is not None:
            lines += [f"# the model, on {model.host}", shlex.join(model.make), ""]
    for worker in stack.workers:
        lines += [f"# {worker.name}, on {worker.host}", *_cards_line(worker), paste_command(worker), ""]
    return "\n".join(lines).rstrip()


def _cards_line(worker: Worker) -> list[str]:
    return [f"# GPUs {', '.join(shown(card) for card in worker.cards)}"] if worker.cards else []


def unresolved(stack: Stack) -> tuple[str, ...]:
    """A sentence for each of a worker's GPUs that no card was found for, or that is a card already named otherwise: it
    stands in the plan as in the profile."""
    missing = [f"{worker.name}: {sentence}" for worker in stack.workers for sentence in worker.unresolved]
    users: dict[tuple[str, int], str] = {}
    twice: list[str] = []
    for worker in stack.workers:
        for card in worker.cards:
            other = users.setdefault((worker.host, card.index), worker.name)
            if other != worker.name or worker.cards.count(card) > 1:
                how = "twice" if other == worker.name else f"by {other} as well"
                twice.append(f"{worker.name}: GPU {shown(card)} on {worker.host} is named {how}")
    return (*missing, *dict.fromkeys(twice))


def plan_as_data(stack: Stack, steps: Sequence[Step]) -> Mapping[str, object]:
    """The plan for a program: every worker's exact argv and environment (secrets as fingerprints), and the steps."""
    return {
        "stack": stack.name,
        "supervisor": stack.supervisor,
        "applied": False,
        "workers": [
            {
                "name": worker.name,
                "host": worker.host,
                "unit": worker.unit,
                "argv": redact_argv(worker.argv),
                "env": redact_env(worker.env),
                "ports": worker.ports,
                "numa_node": worker.numa_node,
                "gpus": worker.gpus,
                "cards": planned(worker).cards,
            }
            for worker in stack.workers
        ],
        "steps": [
            {"id": step.id, "title": step.title, "host": step.host, "deadline_s": step.deadline_s} for step in steps
        ],
    }
