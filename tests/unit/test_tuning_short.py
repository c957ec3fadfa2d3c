"""The short timeout of a verification: as short as the requests allow, never one that would end them."""

import pytest

from dsv4ctl.errors import Refused
from dsv4ctl.timers import Timer
from dsv4ctl.tuning.dwells import Block, History
from dsv4ctl.tuning.short import short_timeout
from dsv4ctl.tuning.since_start import cost_since_start

EDGES = (0.5, 1.0, 10.0, 60.0)


def seen(*counts: int, ended: int = 0) -> History:
    return History(EDGES, (Block(1000.0, (*counts, *(0,) * (len(EDGES) + 1 - len(counts))), ended),))


def chain(heartbeat_s: float = 4.0, waiting_s: float = 300.0) -> list[Timer]:
    return [
        Timer("H", "the heartbeat", "decode-0", "h", heartbeat_s, is_default=False),
        Timer("T", "the inflight timeout", "prefill-0", "t", 60.0, is_default=False),
        Timer("W", "the waiting timeout", "decode-0", "w", waiting_s, is_default=False),
    ]


@pytest.mark.parametrize(
    ("history", "in_force_s", "heartbeat_s", "seconds"),
    [
        (seen(10), 60.0, 4.0, 30.0),
        (seen(300), 60.0, 4.0, 5.0),
        (seen(300), 60.0, 10.0, 15.0),
        (seen(0, 300), 60.0, 4.0, 5.0),
        (seen(0, 0, 300), 60.0, 4.0, 30.0),
        (seen(300), 20.0, 4.0, 20.0),
        (seen(300), 0.0, 4.0, 5.0),
    ],
)
def test_it_is_as_short_as_the_requests_since_the_start_allow(
    history: History, in_force_s: float, heartbeat_s: float, seconds: float
) -> None:
    assert short_timeout(history, chain(heartbeat_s), in_force_s, None).seconds == seconds


@pytest.mark.parametrize("history", [seen(300, 0, 0, 1), seen(300, ended=1)])
def test_it_is_refused_where_requests_stay_longer_or_may(history: History) -> None:
    with pytest.raises(Refused, match="30 s could end good requests") as refused:
        short_timeout(history, chain(), 120.0, None)
    assert "1 of 301 requests since the start stayed longer" in str(refused.value)
    assert short_timeout(history, chain(), 120.0, 30.0).seconds == 30.0


def test_it_is_refused_where_it_stands_wrong_in_the_chain() -> None:
    with pytest.raises(Refused, match="a timeout of 3 s breaks the chain") as refused:
        short_timeout(seen(300), chain(), 60.0, 3.0)
    assert "heartbeat" in str(refused.value)
    with pytest.raises(Refused, match="the waiting timeout"):
        short_timeout(seen(300), chain(waiting_s=31.0), 60.0, 30.0)


def test_without_any_request_nothing_is_excluded() -> None:
    cost = cost_since_start(15.0, seen())
    assert (cost.longer, cost.share, cost.per_day) == (0, 1.0, 0.0)
    some = cost_since_start(15.0, seen(1000))
    assert 0.002 < some.share < 0.004
    assert some.per_day == pytest.approx(some.share * 86_400)
