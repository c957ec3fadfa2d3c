"""The inflight watchdog on the running stack: it fires, its client is answered, and nothing is left."""

import threading

import httpx
import pytest

from tests.engine import Dsv4, StackProfile
from tests.held import TIMEOUT_S, Ended, Pair, check_held_canaries

pytestmark = pytest.mark.stack


def test_held_canaries_are_ended_in_time_and_leave_nothing(shared: StackProfile) -> None:
    check_held_canaries(shared)


def test_a_lease_ends_a_canary_where_the_timeout_is_far(shared: StackProfile) -> None:
    ended = Pair.of(shared).hold("dsv4-hold-1-lease", stream=False)
    assert "the lease of this held canary ended after 1." in ended.text, ended
    assert ended.seconds < TIMEOUT_S, ended


def test_a_pinned_request_is_seen_where_sampling_is_cheap(shared: StackProfile) -> None:
    pair = Pair.of(shared)
    ended: list[Ended] = []
    canary = threading.Thread(target=lambda: ended.append(pair.hold("dsv4-hold-3-seen", stream=False)))
    canary.start()
    seen: list[float] = []
    while canary.is_alive():
        load = httpx.get(f"{pair.prefill}/v1/loads?include=disagg", timeout=10).json()["loads"][0]["dsv4"]
        if load["held"]:
            assert load["by_state"]["waiting_for_input"] == 1
            seen.append(load["oldest_age_s"])
    assert seen == sorted(seen)
    assert seen[-1] > 2


@pytest.mark.parametrize("seconds", [-1, 0.1, 1e9])
def test_a_timeout_that_is_none_changes_nothing(shared: StackProfile, seconds: float) -> None:
    pair = Pair.of(shared)
    before = pair.figures(pair.prefill)["inflight_timeout_s"]
    assert not pair.set_timeout(seconds)
    assert pair.figures(pair.prefill)["inflight_timeout_s"] == before


def test_a_change_of_the_timeout_is_in_the_log(dsv4: Dsv4, shared: StackProfile) -> None:
    pair = Pair.of(shared)
    before = pair.figures(pair.prefill)["inflight_timeout_s"]
    assert pair.set_timeout(77)
    assert pair.set_timeout(before)
    log = dsv4.run("logs", "prefill-0", "-n", "500", "-p", shared.path)
    assert f"dsv4 inflight timeout set rank=tp0/pp0/dp0 before_s={before:g} now_s=77" in log.out
