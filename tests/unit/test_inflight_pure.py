"""What needs no engine: the agreement of pipeline stages, and whose pages decode keeps back."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from serving.inflight.pipeline import failed_among, passed_on, settled_among
from serving.inflight.quarantine import ASK_AGAIN_S, LOST_S, REMEMBERED_S, Quarantine

EPISODES = 100
RIDS = tuple(f"request-{number}" for number in range(8))


@dataclass
class Stage:
    """What a stage of a pipeline knows of each request, and what it did with each list that all agreed on."""

    ended: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)

    def goes_on(self, rng: random.Random) -> None:
        """Some transfers end on this stage, some of them badly; some are over after they have failed."""
        for room, rid in enumerate(RIDS):
            if rid not in self.ended and rng.random() < 0.3:
                self.ended.add(rid)
                if rng.random() < 0.3:
                    self.failed.add(rid)
            if rng.random() < 0.3:
                self.settled.add(room)

    def passes_on(self, before: list[str] | None) -> list[str]:
        return passed_on(before, self.ended, self.failed, self.settled)


def a_round(stages: list[Stage], rng: random.Random | None = None) -> list[str]:
    """What has passed all stages, one after the other; with `rng` each has gone on before its turn."""
    passed: list[str] | None = None
    for stage in stages:
        if rng is not None:
            stage.goes_on(rng)
        passed = stage.passes_on(passed)
    assert passed is not None
    return passed


@pytest.mark.parametrize("count", [2, 3, 4])
def test_one_failure_is_enough_and_an_end_takes_all(count: int) -> None:
    rng = random.Random(count)
    for _ in range(EPISODES):
        stages = [Stage() for _ in range(count)]
        for _ in range(rng.randint(1, 4)):
            agreed = a_round(stages, rng)
            ended = set.intersection(*(stage.ended for stage in stages))
            failed: set[str] = set().union(*(stage.failed for stage in stages))
            assert {name for name in agreed if name in RIDS} == ended
            assert failed_among(agreed) == ended & failed
            assert settled_among(agreed) == set.intersection(*(stage.settled for stage in stages))
            assert len(agreed) == len(set(agreed))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_what_was_once_agreed_stays_so(count: int) -> None:
    """The list of one round is acted on after the next ones have been passed on: they must not contradict it."""
    rng = random.Random(count)
    for _ in range(EPISODES):
        stages = [Stage() for _ in range(count)]
        before: list[str] = []
        for _ in range(4):
            agreed = a_round(stages, rng)
            assert {name for name in before if name in RIDS} <= set(agreed)
            assert settled_among(before) <= settled_among(agreed)
            assert failed_among(agreed) & {name for name in before if name in RIDS} == failed_among(before)
            before = agreed


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_list_does_not_depend_on_who_begins(count: int) -> None:
    """All stages act on the list of the last one; another order of the same stages makes the same of it."""
    rng = random.Random(count)
    for _ in range(EPISODES):
        stages = [Stage() for _ in range(count)]
        a_round(stages, rng)
        agreed = a_round(stages)
        rng.shuffle(stages)
        again = a_round(stages)
        assert sorted(again) == sorted(agreed)
        assert failed_among(again) == failed_among(agreed)


def test_a_mark_alone_ends_nothing() -> None:
    agreed = passed_on(passed_on(None, ["a", "b"], ["a"], []), ["b"], [], [])
    assert "a" not in agreed
    assert failed_among(agreed) == set()
    assert failed_among(passed_on(agreed, ["a", "b"], [], [])) == set(), "the second stage has not ended it"
    assert passed_on(None, [], [], []) == []
    assert passed_on([], ["a"], ["a"], [7]) == ["dsv4-failed:a"]


def unasked(_: object) -> None:
    """A prefill that is asked again and says nothing."""


@dataclass
class Decode:
    """A decode rank's manager, as far as a held release asks it."""

    acknowledged: dict[int, int] = field(default_factory=dict)

    def is_abort_release_safe(self, room: int, required: int) -> bool:
        return self.acknowledged.get(room, 0) >= required

    def held(self, room: int, start_s: float, address: str = "prefill:1", required: int = 1) -> Any:
        """A release that the engine holds for at most LOST_S."""
        request = SimpleNamespace(
            req=SimpleNamespace(bootstrap_room=room, rid=f"request-{room}"),
            kv_receiver=SimpleNamespace(bootstrap_addr=address, kv_mgr=self, bootstrap_room=room),
        )
        return (request, start_s, start_s + LOST_S, room, required)

    def engine_releases(self, held: list[Any], now_s: float) -> tuple[list[int], list[Any]]:
        """(rooms that the engine releases now, what it goes on holding): what was acknowledged or is past its time."""
        still = [entry for entry in held if now_s < entry[2] and not self.is_abort_release_safe(entry[3], entry[4])]
        return [entry[3] for entry in held if entry not in still], still


@pytest.mark.parametrize("seed", range(8))
def test_pages_are_kept_while_prefill_lives_and_given_up_after_its_death(seed: int) -> None:
    rng = random.Random(seed)
    now = 1000.0
    asked: list[int] = []
    decode = Decode()
    quarantine = Quarantine(lambda: now, lambda receiver: asked.append(receiver.bootstrap_room))
    addresses = {room: rng.choice(["prefill:1", "prefill:2"]) for room in range(12)}
    starts = {room: now + rng.uniform(0, 20) for room in addresses}
    lost_at = now + rng.uniform(0, 300)
    held: list[Any] = []
    released: dict[int, float] = {}
    acknowledged: set[int] = set()
    was_lost = False
    while now < 1000.0 + 300 + 3 * LOST_S:
        now += rng.choice([0.1, 0.5])
        held += [
            decode.held(room, start, addresses[room])
            for room, start in starts.items()
            if start <= now and room not in released and all(entry[3] != room for entry in held)
        ]
        if not was_lost and now >= lost_at:
            was_lost, lost_at = True, now
            quarantine.prefill_lost("prefill:1", [room for room in addresses if addresses[room] == "prefill:1"])
        for room in addresses:
            if room not in released and rng.random() < 0.0005:
                decode.acknowledged[room] = 1
                acknowledged.add(room)
        held = quarantine.postpone(held, now)
        done, held = decode.engine_releases(held, now)
        for room in done:
            released[room] = now
            if room not in acknowledged:
                assert was_lost
                assert addresses[room] == "prefill:1"
                assert lost_at + LOST_S <= now <= lost_at + LOST_S + 0.5
    assert {room for room, address in addresses.items() if address == "prefill:1"} <= set(released)
    assert {room for room in released if addresses[room] == "prefill:2"} <= acknowledged
    assert {room for room in addresses if room not in released} <= set(asked)


def test_a_new_prefill_at_the_address_of_a_dead_one_is_not_dead() -> None:
    now = 100.0
    quarantine, decode = Quarantine(lambda: now, unasked), Decode()
    quarantine.prefill_lost("prefill:1", [1])
    held = [decode.held(room, now + 1) for room in (1, 2)]
    assert [entry[3] for entry in quarantine.postpone(held, now + 1 + LOST_S) if entry[2] <= now + 1 + LOST_S] == [1]


def test_rooms_of_the_dead_are_forgotten() -> None:
    now = 100.0
    quarantine, decode = Quarantine(lambda: now, unasked), Decode()
    quarantine.prefill_lost("prefill:1", [1])
    now += 2 * REMEMBERED_S
    quarantine.prefill_lost("prefill:2", [2])
    held = [decode.held(room, now + 1, "prefill:3") for room in (1, 2)]
    assert quarantine.drained(held, now + 1 + LOST_S) == [False, True]


def test_drained_is_what_was_acknowledged_or_whose_prefill_is_dead_for_long_enough() -> None:
    now = 100.0
    quarantine, decode = Quarantine(lambda: now, unasked), Decode({1: 1, 2: 1})
    held = [
        decode.held(1, now),
        decode.held(2, now, required=2),
        decode.held(3, now, "prefill:2"),
        decode.held(4, now, required=0),
    ]
    assert quarantine.drained(held, now) == [True, False, False, True]
    assert quarantine.drained(held, now + 1e6) == [True, False, False, True]
    quarantine.prefill_lost("prefill:2", [])
    assert quarantine.drained(held, now + LOST_S - 0.1) == [True, False, False, True]
    assert quarantine.drained(held, now + LOST_S) == [True, False, True, True]


def test_nothing_else_of_a_held_release_changes() -> None:
    quarantine, decode = Quarantine(lambda: 0.0, unasked), Decode()
    held = [decode.held(room, 10.0 * room) for room in range(5)]
    kept = quarantine.postpone(held, 35.0)
    assert [(*entry[:2], *entry[3:]) for entry in kept] == [(*entry[:2], *entry[3:]) for entry in held]
    assert [entry[2] for entry in kept] == [35.0 + ASK_AGAIN_S, 40.0, 50.0, 60.0, 70.0]
