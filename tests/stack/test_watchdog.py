"""The inflight watchdog on the running stack: it fires, its client is answered, and nothing is left."""

import threading
import time

import httpx
import pytest

from dsv4ctl.waiting import wait_until
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


def test_a_timeout_on_a_lease_goes_back_by_itself_also_where_nothing_is_asked(shared: StackProfile) -> None:
    pair = Pair.of(shared)

    def told() -> tuple[float, float]:
        load = httpx.get(f"{pair.prefill}/v1/loads?include=disagg", timeout=10).json()["loads"][0]["dsv4"]
        return load["timeout_s"], load["standing_timeout_s"]

    before, _ = told()
    assert not pair.set_timeout(9, was=before + 1, lease=30)
    assert told() == (before, before)
    began = time.monotonic()
    assert pair.set_timeout(9, was=before, lease=2)
    assert told() == (9, before)
    assert 0 < pair.figures(pair.prefill)["inflight_lease_left_s"] <= 2
    wait_until(lambda: told() == (before, before), deadline_s=10, what="the end of the lease")
    assert time.monotonic() - began >= 1.9
    assert pair.set_timeout(9, lease=600)
    assert pair.set_timeout(lease=0)
    assert told() == (before, before)
    assert not pair.set_timeout(9, lease=0)


def test_a_change_of_the_timeout_is_in_the_log(dsv4: Dsv4, shared: StackProfile) -> None:
    pair = Pair.of(shared)
    before = pair.figures(pair.prefill)["inflight_timeout_s"]
    assert pair.set_timeout(77)
    assert pair.set_timeout(before)
    log = dsv4.run("logs", "prefill-0", "-n", "500", "-p", shared.path)
    assert f"dsv4 inflight timeout set rank=tp0/pp0/dp0 before_s={before:g} now_s=77" in log.out
