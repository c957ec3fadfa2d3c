"""The executor journals before and after every step, does nothing twice, and stops only between steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import Interrupted, OperationFailed
from dsv4ctl.journal import Diary
from dsv4ctl.plan import Facts, Step, execute
from dsv4ctl.signals import Interrupts


@dataclass
class Lines:
    """A journal in memory."""

    written: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def write(self, event: str, **fields: object) -> None:
        self.written.append((event, fields))

    def of(self, step: str) -> list[str]:
        return [event for event, fields in self.written if fields.get("step") == step]


@dataclass
class Does:
    """An action that reports what it is told to."""

    done: list[str]
    name: str
    is_already: bool = False
    error: BaseException | None = None
    then: Callable[[], None] = lambda: None

    def already(self) -> str | None:
        return "so already" if self.is_already else None

    def run(self) -> Facts:
        if self.error is not None:
            raise self.error
        self.done.append(self.name)
        self.then()
        return {"name": self.name}


def steps(count: int) -> tuple[Step, ...]:
    return tuple(Step(str(i), f"step {i}", "local", 1.0) for i in range(count))


def ignore(step: Step, state: str, seconds: float | None, detail: str | None) -> None:
    assert state in {"begin", "done", "already", "failed"}


@given(already=st.lists(st.booleans(), max_size=8), fail_at=st.none() | st.integers(0, 7))
def test_the_journal_tells_exactly_what_happened(already: list[bool], fail_at: int | None) -> None:
    done: list[str] = []
    journal = Lines()
    plan = steps(len(already))
    failing = fail_at is not None and fail_at < len(plan) and not already[fail_at]

    def action(step: Step) -> Does:
        index = int(step.id)
        error = OperationFailed("no") if failing and index == fail_at else None
        return Does(done, step.id, is_already=already[index], error=error)

    def run() -> object:
        return execute(plan, action, journal=journal, interrupts=Interrupts(), report=ignore)

    if failing:
        with pytest.raises(OperationFailed):
            run()
    else:
        run()
    reached = fail_at if failing and fail_at is not None else len(plan)
    for step in plan[:reached]:
        assert journal.of(step.id) == (["already"] if already[int(step.id)] else ["begin", "done"])
    assert done == [step.id for step in plan[:reached] if not already[int(step.id)]]
    if failing:
        assert journal.of(str(fail_at)) == ["begin", "failed"]
        assert all(not journal.of(step.id) for step in plan[reached + 1 :])


def test_ctrl_c_takes_effect_before_the_next_step_and_not_within_one() -> None:
    done: list[str] = []
    interrupts = Interrupts()

    def action(step: Step) -> Does:
        return Does(done, step.id, then=(lambda: interrupts.ask("SIGINT")) if step.id == "1" else lambda: None)

    with pytest.raises(Interrupted, match="SIGINT"):
        execute(steps(4), action, journal=Lines(), interrupts=interrupts, report=ignore)
    assert done == ["0", "1"]


def test_a_diary_that_cannot_be_written_stops_nothing_and_says_so_once() -> None:
    class Full:
        def write(self, event: str, **fields: object) -> None:
            raise OperationFailed("no space left on device")

    told: list[str] = []
    done: list[str] = []
    execute(
        steps(3),
        lambda step: Does(done, step.id),
        journal=Diary(Full(), told.append),
        interrupts=Interrupts(),
        report=ignore,
    )
    assert done == ["0", "1", "2"]
    assert len(told) == 1
    assert "no space left" in told[0]
