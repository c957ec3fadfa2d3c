"""Carrying out `tune-timeout --apply`, and taking it back whole where it is not carried out whole."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv4ctl.errors import Dsv4Error, Refused, VerificationFailed
from dsv4ctl.plan import Always, Facts, Step
from dsv4ctl.tuning.verifying import counted

if TYPE_CHECKING:
    from dsv4ctl.tuning.apply_plan import Change
    from dsv4ctl.tuning.control import PrefillEngine

_LOOK_EVERY_S = 1.0


@dataclass
class Applying:
    """One change: what it acts on. `remember`, `record` and `write` put it down, for --undo, as what is planned, and in
    the profile; `forget` and `unrecord` take that back."""

    change: "Change"
    engines: Sequence["PrefillEngine"]
    sleep: Callable[[float], None]
    remember: Callable[[], None]
    forget: Callable[[], None]
    record: Callable[[], None]
    unrecord: Callable[[], None]
    write: Callable[[], Facts]
    leased: list["PrefillEngine"] = field(default_factory=list)
    kept: list["PrefillEngine"] = field(default_factory=list)
    is_remembered: bool = False
    is_recorded: bool = False

    def engine(self, worker: str) -> "PrefillEngine":
        """A prefill worker by its name."""
        return next(engine for engine in self.engines if engine.worker == worker)

    def take_back(self) -> list[str]:
        """Everything as it was. Returns what became of each engine, as sentences, and of what could not be done."""
        said, is_left = [], False
        for engine in dict.fromkeys((*self.leased, *self.kept)):
            before_s = self.change.before_s[engine.worker]
            try:
                self._take_back(engine)
            except Dsv4Error as error:
                by_itself = "" if engine in self.kept else f"; its lease of {self.change.lease_s:.0f} s does that"
                said.append(f"{engine.worker} on {engine.host} is not back at {before_s:g} s: {error}{by_itself}")
                # What somebody else has set meanwhile is not ours to undo.
                is_left = is_left or (engine in self.kept and not isinstance(error, Refused))
            else:
                said.append(f"{engine.worker} on {engine.host} has {before_s:g} s again, read back")
        undone = ((self.is_recorded, self.unrecord, "what is planned"), (self.is_remembered, self.forget, "for --undo"))
        for is_done, undo, what in undone if not is_left else ():
            if is_done:
                try:
                    undo()
                except Dsv4Error as error:
                    said.append(f"what was written down {what} is still there: {error}")
        return said

    def _take_back(self, engine: "PrefillEngine") -> None:
        before_s, now = self.change.before_s[engine.worker], engine.in_force()
        if now.standing_s == before_s:
            engine.end_lease()
        else:
            engine.put(before_s, was_s=self.change.timeout_s)


class ApplyAction(Always):
    """How each step of the plan is done."""

    def __init__(self, work: Applying, step: Step) -> None:
        self._work = work
        self._step = step

    def run(self) -> Facts:
        kind, _, worker = self._step.id.partition(":")
        does: dict[str, Callable[[], Facts]] = {
            "lease": lambda: _lease(self._work, worker),
            "soak": lambda: _soak(self._work),
            "remember": lambda: _remember(self._work),
            "keep": lambda: _keep(self._work, worker),
            "record": lambda: _record(self._work),
            "file": self._work.write,
        }
        return does[kind]()


def _lease(work: Applying, worker: str) -> Facts:
    engine, change = work.engine(worker), work.change
    # From here on it may have it, whether or not we hear of it.
    work.leased.append(engine)
    now = engine.put(change.timeout_s, was_s=change.before_s[worker], lease_s=change.lease_s)
    return {"timeout_s": now.timeout_s, "standing_s": now.standing_s, "lease_left_s": now.lease_left_s}


def _soak(work: Applying) -> Facts:
    change = work.change
    before = {engine.worker: counted(engine) for engine in work.engines}
    end_s = time.monotonic() + change.soak_s
    while True:
        now = {engine.worker: counted(engine) for engine in work.engines}
        anew = [worker for worker, seen in now.items() if seen.fires < before[worker].fires]
        if anew:
            raise VerificationFailed(f"{', '.join(anew)} started anew while it was watched: it has its old timeout")
        for engine in work.engines if change.workers else ():
            if (has_s := engine.in_force().timeout_s) != change.timeout_s:
                raise Refused(
                    f"{engine.worker} on {engine.host} has {has_s:g} s, and not {change.timeout_s:g} s any more",
                    why="somebody else changed it while it was watched",
                )
        fires = {worker: seen.fires - before[worker].fires for worker, seen in now.items()}
        left = sum(sum(seen.since(before[worker]).values()) for worker, seen in now.items())
        if sum(fires.values()) > change.allowed:
            words = ", ".join(f"{count} on {worker}" for worker, count in fires.items() if count)
            raise VerificationFailed(
                f"the watchdog ended more than was predicted ({words}; at most {change.allowed}), so "
                f"{change.timeout_s:g} s is taken back",
                why=f"{change.expected:.2f} are not excluded by the evidence in {change.soak_s:g} s",
                hint="`dsv4ctl watch-inflight` tells pinned requests, which it should end, from slow ones",
            )
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return {"fires": fires, "requests": left, "allowed": change.allowed}
        work.sleep(min(_LOOK_EVERY_S, left_s))


def _remember(work: Applying) -> Facts:
    work.is_remembered = True
    work.remember()
    return {}


def _record(work: Applying) -> Facts:
    work.is_recorded = True
    work.record()
    return {}


def _keep(work: Applying, worker: str) -> Facts:
    engine, change = work.engine(worker), work.change
    was_s = change.timeout_s if engine in work.leased else change.before_s[worker]
    work.kept.append(engine)
    now = engine.put(change.timeout_s, was_s=was_s)
    return {"timeout_s": now.timeout_s}


@contextmanager
def taking_back(work: Applying, warn: Callable[[str], None]) -> Iterator[None]:
    """Around the change: where it does not come to its end, everything is as before, and what became of it is told."""
    try:
        yield
    except BaseException:
        for sentence in work.take_back():
            warn(sentence)
        raise
