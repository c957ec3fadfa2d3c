"""Rules that the status of a room has to follow, tried on the managers of the SGLang of this interpreter.

    python -m tests.status_properties

The classes are SGLang's own; only their maps are made here. Every step of a thread through the map of statuses is a
point at which another thread may be next, and hypothesis chooses which. It says as JSON what it found: for each class,
with one thread and with three, a way to break each rule as SGLang is, and to break any of them patched; null where it
found none.
"""

import contextlib
import functools
import itertools
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from serving.transfer.statuses import BOOTSTRAPPING, FAILED, SUCCESS, TRANSFERRING, WAITING_FOR_INPUT, keep_statuses

CLEAR = -1
"""What a thread may do beside giving the room one of the statuses."""
ROOM = 7
NAMES = {
    None: "gone",
    CLEAR: "clear",
    FAILED: "Failed",
    BOOTSTRAPPING: "Bootstrapping",
    WAITING_FOR_INPUT: "WaitingForInput",
    TRANSFERRING: "Transferring",
    SUCCESS: "Success",
}

History = list[int | None]
"""What the status was after each write, None for no such room."""
Rule = Callable[[int | None, int | None], bool]
"""Whether a status may come after another."""


def failed_stays(before: int | None, after: int | None) -> bool:
    return before != FAILED or after in (FAILED, None)


def success_stays(before: int | None, after: int | None) -> bool:
    return before != SUCCESS or after in (SUCCESS, None)


def gone_stays(before: int | None, after: int | None) -> bool:
    return before is not None or after in (BOOTSTRAPPING, WAITING_FOR_INPUT, None)


def never_back(before: int | None, after: int | None) -> bool:
    return before is None or after in (FAILED, None) or before in (FAILED, SUCCESS) or after >= before


RULES = (failed_stays, success_stays, gone_stays, never_back)


@dataclass(frozen=True)
class Episode:
    """What the room has been through, what each thread then does with it, and whose turn it is at each step."""

    before: tuple[int, ...]
    threads: tuple[tuple[int, ...], ...]
    turns: tuple[int, ...]

    def __str__(self) -> str:
        programs = (", ".join(NAMES[act] for act in acts) for acts in self.threads)
        turns = "" if len(self.threads) == 1 else f" (turns {''.join(map(str, self.turns))})"
        return f"{NAMES[self.before[-1]]}; " + " || ".join(programs) + turns


class Turns:
    """Interrupts one thread by another where an episode says so, without any real thread.

    Whoever interrupts runs to the end of what it is at before the other goes on, and may itself be interrupted by a
    thread that is not waiting. That is every order in which an update can be lost: others ran between two steps of it.
    """

    def __init__(self, order: Sequence[int], programs: Sequence[Sequence[Callable[[], None]]]) -> None:
        self._order = iter(order)
        self._left = [list(program) for program in programs]
        self._waiting: set[int] = set()

    def run(self) -> None:
        """Run all programs to their end."""
        while runnable := self._runnable():
            self._act(runnable[next(self._order, 0) % len(runnable)])

    def step(self) -> None:
        """Called in the middle of an act: others may run now."""
        runnable = self._runnable() if self._waiting else []
        chosen = next(self._order, 0) if runnable else 0
        if chosen:
            self._act(runnable[(chosen - 1) % len(runnable)])

    def _runnable(self) -> list[int]:
        return [number for number, acts in enumerate(self._left) if acts and number not in self._waiting]

    def _act(self, number: int) -> None:
        self._waiting.add(number)
        self._left[number].pop(0)()
        self._waiting.discard(number)


def stepped(statuses: Any, turns: Turns, history: History) -> Any:
    """The same map, with a step before each access, and every status noted that it takes on."""
    kind: Any = type(statuses)

    class Stepped(kind):  # type: ignore[misc]  # a class known at run time
        def get(self, *args: Any) -> Any:
            turns.step()
            return super().get(*args)

        def __contains__(self, room: object) -> bool:
            turns.step()
            return bool(super().__contains__(room))

        def __getitem__(self, room: int) -> Any:
            turns.step()
            return super().__getitem__(room)

        def __setitem__(self, room: int, status: int) -> None:
            turns.step()
            super().__setitem__(room, status)
            history.append(super().get(ROOM))

        def pop(self, *args: Any) -> Any:
            turns.step()
            popped = super().pop(*args)
            history.append(super().get(ROOM))
            return popped

    if isinstance(statuses, dict):
        return Stepped(statuses)
    statuses.__class__ = Stepped
    return statuses


@dataclass(frozen=True)
class Case:
    """A class of managers, and how the map is made that it keeps statuses in."""

    name: str
    kind: type[Any]
    make_map: Callable[[], Any] = dict


def bare(case: Case) -> Any:
    """A manager that has what its `update_status` needs on any version, and nothing else."""
    manager = object.__new__(case.kind)
    manager.request_status = case.make_map()
    manager._deferred_ack_targets = {}
    manager._deferred_ack_poisoned_rooms = set()
    manager._staging_outstanding = {}
    return manager


def play(case: Case, episode: Episode, *, patched: bool) -> History:
    """What becomes of a room."""
    manager = bare(case)
    if patched:
        keep_statuses(None, manager)
    for status in episode.before:
        manager.update_status(ROOM, status)
    history: History = [manager.request_status.get(ROOM)]

    def act(what: int) -> None:
        if what == CLEAR:
            manager.request_status.pop(ROOM, None)
        else:
            # Up to 0.5.19 it raises if the room is cleared while it looks: no status is written then.
            with contextlib.suppress(KeyError):
                manager.update_status(ROOM, what)

    turns = Turns(episode.turns, [[functools.partial(act, what) for what in acts] for acts in episode.threads])
    manager.request_status = stepped(manager.request_status, turns, history)
    turns.run()
    return history


def episodes(threads: int) -> st.SearchStrategy[Episode]:
    """For so many threads."""
    acts = st.sampled_from([BOOTSTRAPPING, WAITING_FOR_INPUT, TRANSFERRING, SUCCESS, FAILED, CLEAR])
    before = st.sampled_from([(BOOTSTRAPPING, status) for status in (BOOTSTRAPPING, TRANSFERRING, SUCCESS, FAILED)])
    programs = st.lists(st.lists(acts, min_size=1, max_size=3).map(tuple), min_size=threads, max_size=threads)
    turns = st.lists(st.integers(0, threads - 1), max_size=8 * (threads - 1)).map(tuple)
    return st.builds(Episode, before, programs.map(tuple), turns)


@functools.cache
def breaking(case: Case, rules: tuple[Rule, ...], *, threads: int, patched: bool) -> str | None:
    """An episode found that breaks one of the rules, and what became of the room; None if there was none."""

    def is_broken(episode: Episode) -> bool:
        steps = list(itertools.pairwise(play(case, episode, patched=patched)))
        return not all(rule(*step) for rule in rules for step in steps)

    # That SGLang breaks them is known, and the shortest way is only worth its time where nothing should be found.
    phases = (Phase.generate, Phase.shrink) if patched else (Phase.generate,)
    chosen = settings(max_examples=300 * threads, phases=phases, derandomize=True, database=None, deadline=None)
    try:
        found = find(episodes(threads), is_broken, settings=chosen)
    except NoSuchExample:
        return None
    became = (NAMES[status] for status in play(case, found, patched=patched))
    return f"{found}: {' -> '.join(became)}"


MODES = {"one thread": 1, "three threads": 3}


def findings(cases: Sequence[Case]) -> Iterator[tuple[str, Any]]:
    """By case and mode: for SGLang as it is what breaks each rule, patched what breaks any of them.

    Cases that share a method and a kind of map share what is found.
    """
    shared = {(case.kind.update_status, case.make_map): case for case in reversed(cases)}
    of = {case.name: shared[case.kind.update_status, case.make_map] for case in cases}
    yield (
        "stock",
        {
            name: {
                mode: {rule.__name__: breaking(case, (rule,), threads=threads, patched=False) for rule in RULES}
                for mode, threads in MODES.items()
            }
            for name, case in of.items()
        },
    )
    yield (
        "patched",
        {
            name: {mode: breaking(case, RULES, threads=threads, patched=True) for mode, threads in MODES.items()}
            for name, case in of.items()
        },
    )


def main() -> None:
    """Say what was found."""
    warnings.simplefilter("ignore")  # SGLang's, of kernels that this machine has no use for
    from sglang.srt.disaggregation.common import conn
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager

    cases = [
        Case("CommonKVManager", conn.CommonKVManager),
        Case("NixlKVManager", NixlKVManager),
        Case("MooncakeKVManager", MooncakeKVManager),
    ]
    if hasattr(conn, "PPConsensusStore"):

        def store_of_first_stage() -> Any:
            store = object.__new__(conn.PPConsensusStore)
            store._pp_rank = 0
            store._local_map = {}
            store._cache_lock = threading.Lock()
            return store

        cases.append(Case("CommonKVManager with pipeline stages", conn.CommonKVManager, store_of_first_stage))
    json.dump({"sglang": version("sglang"), **dict(findings(cases))}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
