"""Which rooms are lost, over every combination that can arise."""

import random

from serving.peers.rooms import NO_DECODE, Gone, Peer, Waiting, lost

GRACE_S = 10.0


def gone(*names: str, at_s: float = 0.0) -> dict[str, Gone]:
    return {
        name: Gone(Peer(name, "10.0.0.1", 1000 + i), "refused 2 connections in a row", at_s)
        for i, name in enumerate(names)
    }


def judge(
    named: dict[int, list[str]], waiting: dict[int, float], dead: dict[str, Gone], *, any_alive: bool, now_s: float
) -> dict[int, str]:
    return lost(named, waiting, dead, any_alive=any_alive, grace_s=GRACE_S, now_s=now_s)


def test_before_any_decode_has_registered_no_room_is_lost_however_long_it_waits() -> None:
    assert judge({}, {1: 0.0, 2: 100.0}, {}, any_alive=False, now_s=1e6) == {}


def test_a_room_of_a_worker_that_is_gone_is_lost_at_once_and_says_whose() -> None:
    found = judge({1: ["a"], 2: ["b"]}, {}, gone("a"), any_alive=True, now_s=0.1)
    assert set(found) == {1}
    assert "10.0.0.1:1000 (a)" in found[1]
    assert "refused 2 connections" in found[1]


def test_one_of_the_workers_of_a_room_is_enough() -> None:
    assert set(judge({1: ["b", "c", "a"], 2: ["b", "c"]}, {}, gone("a"), any_alive=True, now_s=0)) == {1}


def test_a_room_that_nobody_asked_for_is_lost_after_the_grace_when_all_workers_are_gone() -> None:
    dead = gone("a", "b", at_s=95.0)
    assert judge({}, {1: 90.1}, dead, any_alive=False, now_s=100.0) == {}
    found = judge({}, {1: 90.0, 2: 99.0}, dead, any_alive=False, now_s=100.0)
    assert set(found) == {1}
    assert found[1].startswith(NO_DECODE)
    assert "all 2" in found[1]


def test_with_a_living_worker_a_room_waits_as_long_as_sglang_lets_it() -> None:
    assert judge({}, {1: 0.0}, gone("a"), any_alive=True, now_s=1e6) == {}


def test_properties_of_any_state_of_affairs() -> None:
    rng = random.Random(23)
    for _ in range(3000):
        names = [f"w{i}" for i in range(rng.randrange(5))]
        dead = {name: worker for name, worker in gone(*names, at_s=rng.uniform(0, 50)).items() if rng.random() < 0.5}
        alive = [name for name in names if name not in dead]
        named = {room: rng.sample(names, rng.randrange(1, len(names) + 1)) for room in range(rng.randrange(6)) if names}
        waiting = {room: rng.uniform(0, 60) for room in range(100, 100 + rng.randrange(6))}
        now_s = 60.0
        found = judge(named, waiting, dead, any_alive=bool(alive), now_s=now_s)
        for room, workers in named.items():
            assert (room in found) == any(worker in dead for worker in workers)
        for room, since_s in waiting.items():
            assert (room in found) == (bool(dead) and not alive and now_s - since_s >= GRACE_S)


def test_a_room_is_stamped_when_first_seen_and_forgotten_when_it_stops_waiting() -> None:
    waiting = Waiting()
    waiting.look([1, 2], 5.0)
    waiting.look([2, 3], 6.0)
    assert waiting.since_s == {2: 5.0, 3: 6.0}
    waiting.look([1], 7.0)
    assert waiting.since_s == {1: 7.0}
