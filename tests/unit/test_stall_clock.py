"""How long requests have waited for a scheduler, by simulation."""

import random

from serving.limits import LIMITS
from serving.stall.clock import LATE, StallClock, every_s
from serving.stall.watch import LIMIT, SHOWN_EVERY_S

EVERY_S = 1.0
LIMIT_S = 20.0


def moving(clock: StallClock) -> float:
    """Show movement once, so that the clock is armed; returns the time."""
    clock.look(0.0, b"a", [])
    clock.look(1.0, b"b", [])
    return 1.0


def test_a_request_of_a_scheduler_that_stopped_is_overdue_at_the_limit_and_not_before() -> None:
    clock = StallClock(EVERY_S)
    now = moving(clock)
    for step in range(1, 21):
        clock.look(now + step, b"b", ["r"])
        assert clock.overdue(LIMIT_S) == {}
    clock.look(now + 21, b"b", ["r"])
    assert clock.overdue(LIMIT_S) == {"r": 20.0}


def test_a_request_that_arrives_at_an_idle_scheduler_counts_from_its_arrival() -> None:
    clock = StallClock(EVERY_S)
    now = moving(clock)
    for step in range(1, 1000):
        clock.look(now + step, b"b", [])
    clock.look(now + 1000, b"b", ["late"])
    assert clock.overdue(LIMIT_S) == {}
    for step in range(1001, 1021):
        clock.look(now + step, b"b", ["late"])
    assert clock.overdue(LIMIT_S) == {"late": 20.0}


def test_what_was_never_seen_to_move_never_stalls() -> None:
    clock = StallClock(EVERY_S)
    for step in range(1000):
        clock.look(float(step), b"a", ["r"])
    assert not clock.has_moved
    assert clock.overdue(LIMIT_S) == {}
    assert clock.still_s == 0


def test_a_look_that_could_not_see_counts_as_no_time() -> None:
    clock = StallClock(EVERY_S)
    now = moving(clock)
    for step in range(1, 100):
        clock.look(now + step, None, ["r"])
    assert clock.overdue(LIMIT_S) == {}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    clock = StallClock(EVERY_S)
    now = moving(clock)
    clock.look(now + 1, b"b", ["r"])
    clock.look(now + 3600, b"b", ["r"])  # whoever looks was stopped for an hour
    assert clock.overdue(LIMIT_S) == {}
    assert clock.still_s <= 1 + LATE * EVERY_S


def test_no_request_of_a_scheduler_that_moves_within_the_limit_is_ever_overdue() -> None:
    rng = random.Random(5)
    for _ in range(60):
        clock = StallClock(EVERY_S)
        now = moved = moving(clock)
        version = 0
        pending: list[str] = []
        for step in range(200):
            now += rng.choice([0.9, 1.0, 1.3, 30.0])
            if rng.random() < 0.2 or now - moved > LIMIT_S / 2:
                version, moved = version + 1, now
            if rng.random() < 0.3:
                pending.append(f"r{step}")
            if pending and rng.random() < 0.2:
                pending.pop(rng.randrange(len(pending)))
            clock.look(now, version, pending)
            assert clock.overdue(LIMIT_S) == {}


def test_every_request_of_a_scheduler_that_stands_still_is_overdue_soon_after_the_limit() -> None:
    rng = random.Random(7)
    for _ in range(60):
        clock = StallClock(EVERY_S)
        now = moving(clock)
        arrived: dict[str, float] = {}
        for step in range(60):
            now += rng.uniform(0.95, 1.1)
            if rng.random() < 0.3:
                arrived[f"r{step}"] = now
            clock.look(now, b"b", list(arrived))
            overdue = clock.overdue(LIMIT_S)
            for rid, since in arrived.items():
                if now - max(since, 1.0) > LIMIT_S + 0.01:
                    assert rid in overdue
                assert rid not in overdue or now - since >= LIMIT_S - 0.01


def test_short_limits_are_looked_at_more_often() -> None:
    assert every_s(120.0) == 1.0
    assert every_s(2.0) == 0.2


def longest_stillness(limit_s: float, shown_every_s: float) -> float:
    """For how long a scheduler that shows itself that often is ever seen to stand still, looked at for this limit."""
    clock, now = StallClock(every_s(limit_s)), 0.0
    longest = 0.0
    for _ in range(3000):
        now += every_s(limit_s)
        clock.look(now, int(now / shown_every_s), ["r"])
        longest = max(longest, clock.still_s)
    return longest


def test_the_shortest_limit_is_twice_what_a_scheduler_at_rest_reaches() -> None:
    """It sleeps for a second at a time (--sleep-on-idle), and its next show may come half a second after that."""
    at_rest_s = 1.0 + SHOWN_EVERY_S
    assert longest_stillness(LIMITS[LIMIT].shortest_s, at_rest_s) <= LIMITS[LIMIT].shortest_s / 2
    assert longest_stillness(1.0, at_rest_s) >= 1.0
