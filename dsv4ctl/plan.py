"""Plans are data: a tuple of steps made by a pure function, shown by --dry-run, carried out by one executor.

The executor asks before each step whether it is already so, journals before and after it, and is stopped by Ctrl-C only
between steps or where a step itself waits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsv4ctl.errors import Dsv4Error, Interrupted
from dsv4ctl.journal import JournalSink
from dsv4ctl.signals import Interrupts

Facts = Mapping[str, Any]
"""What a step found or did, as JSON has it."""


@dataclass(frozen=True)
class Step:
    """One thing to do. `id` is stable (`start:prefill-0`); `title` completes "now:"; `host` is where it happens.

    `script` is what a person would paste to do the same by hand, one argv a line; empty where there is no such line.
    """

    id: str
    title: str
    host: str
    deadline_s: float
    script: tuple[tuple[str, ...], ...] = ()


class Action(Protocol):
    """How a step is carried out. `already` returns the evidence that there is nothing to do, or None."""

    def already(self) -> str | None: ...

    def run(self) -> Facts:
        """Do it, check it, and return what is worth journalling.

        Raises:
            Dsv4Error: it could not be done, or did not prove itself.
        """


class Always:
    """Base of an action that is never already done."""

    def already(self) -> str | None:
        """There is always something to do."""
        return None


class Outcome(Protocol):
    """Told of every change of a step's state: "begin", "done", "already", "failed" or "interrupted"."""

    def __call__(self, step: Step, state: str, seconds: float | None, detail: str | None) -> None: ...


@dataclass(frozen=True)
class Timed:
    """A step that was carried out (or was so already), with the seconds it took."""

    step: Step
    state: str
    seconds: float
    facts: Facts = field(default_factory=dict)


def how_it_ended(error: BaseException) -> str:
    """What is said of the step that raised this."""
    return "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"


def execute(
    steps: Sequence[Step],
    action_for: Callable[[Step], Action],
    *,
    journal: JournalSink,
    interrupts: Interrupts,
    report: Outcome,
    before_step: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Timed, ...]:
    """Carry out a plan and return the timeline. `before_step` checks what every step relies on, such as our lock.

    Raises:
        Interrupted: Ctrl-C; the journal says before or in which step.
        Dsv4Error: whatever the failing step raised, after it was journalled.
    """
    timeline: list[Timed] = []
    for step in steps:
        interrupts.check()
        before_step()
        action = action_for(step)
        evidence = action.already()
        if evidence is not None:
            journal.write("already", step=step.id, evidence=evidence)
            report(step, "already", 0.0, evidence)
            timeline.append(Timed(step, "already", 0.0))
            continue
        journal.write("begin", step=step.id, deadline_s=step.deadline_s)
        report(step, "begin", None, None)
        began = clock()
        try:
            facts = action.run()
        except (Dsv4Error, KeyboardInterrupt) as error:
            seconds = clock() - began
            state = how_it_ended(error)
            journal.write(state, step=step.id, seconds=round(seconds, 3), error=str(error) or type(error).__name__)
            report(step, state, seconds, str(error))
            raise
        seconds = clock() - began
        journal.write("done", step=step.id, seconds=round(seconds, 3), facts=facts)
        report(step, "done", seconds, None)
        timeline.append(Timed(step, "done", seconds, facts))
    return tuple(timeline)
