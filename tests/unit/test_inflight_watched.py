"""What the watchdog sees and says, and what ranks, stages and decode agree on, on SGLang's own classes."""

from typing import Any

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)

ABORTED = "Aborted by AbortReq."


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What was seen in each scene."""
    return answer("inflight_watched")


def test_an_engine_that_keeps_pages_is_not_idle(seen: dict[str, Any]) -> None:
    assert seen["an_engine_that_keeps_pages_is_not_idle"] == {
        "kept": {
            "plainly": False,
            "whatever waits": False,
            "for a health check": True,
            "for a health check, by position": True,
        },
        "none": {
            "plainly": True,
            "whatever waits": True,
            "for a health check": True,
            "for a health check, by position": True,
        },
        "none, and one waits": False,
    }


def test_a_request_that_decode_never_asks_for_is_not_the_watchdogs(seen: dict[str, Any]) -> None:
    assert seen["a_parked_request_that_waits"] == [0, "Bootstrapping", 1, 0.0]


def test_nothing_is_kept_of_a_request_that_decode_never_asked_for(seen: dict[str, Any]) -> None:
    at_once = [["kv", "metadata"], 0, True]
    assert seen["a_parked_request_that_fails"] == {"1": at_once, "2": at_once}


def test_what_the_report_says_is_so(seen: dict[str, Any]) -> None:
    assert seen["since_progress"] == {
        "waited": [1.0, 2.0],
        "entered": [0.5, 1.5],
        "started": [0.0, 1.0],
        "ended": [0.0, 1.0],
        "none left": [0.0, 0.0],
    }
    assert seen["transferred"] == [
        [1, 2],
        [["success", 300, "first"], ["failed", 0, "first"], ["timeout", 0, "up_to_1MiB"]],
    ]
    assert seen["which_is_the_oldest"] == {
        "the same": True,
        "told apart": True,
        "32 bits": True,
        "none": 0,
        "again": True,
    }
    assert seen["how_often_it_is_shown"] == [True, True]


def test_a_canary_is_held_until_its_lease_ends_where_that_is_allowed(seen: dict[str, Any]) -> None:
    assert seen["the_lease_of_a_canary"] == {
        "allowed": {
            "early": [],
            "held": 1,
            "ended": ["dsv4-hold-2-canary"],
            "message": "the lease of this held canary ended after 2.1 s",
            "fires": 0,
            "left": ["aborted"],
            "the other stays": True,
        },
        "not allowed": {
            "early": [],
            "held": 0,
            "ended": [],
            "message": "",
            "fires": 0,
            "left": [],
            "the other stays": True,
        },
    }
    assert seen["what_is_held"] == {"dsv4-hold-2-canary": 0, "dsv4-hold-": 0, "x-dsv4-hold-2": 1, "any": 1}


def test_a_stage_ends_what_is_overdue_in_its_own_poll_and_not_in_a_pass_that_all_agreed_on(
    seen: dict[str, Any],
) -> None:
    assert seen["a_stage_of_a_pipeline"] == {
        "before": True,
        "agreed": True,
        "after it": [0, "WaitingForInput"],
        "polled": True,
        "fires": 1,
        "in the end": True,
    }


def test_one_look_finds_what_each_sender_would_have_said(seen: dict[str, Any]) -> None:
    assert seen["the_poll_of_all_is_the_poll_of_each"] == "5 statuses of 36 senders"


def test_a_decode_that_takes_no_more_messages_does_not_hold_up_the_scheduler(seen: dict[str, Any]) -> None:
    assert seen["a_decode_that_takes_no_more_messages"] == [True, "Failed"]


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_decode_hears_of_an_abort_after_all_was_sent(seen: dict[str, Any], backend: str) -> None:
    assert seen["an_abort_after_all_was_sent"][backend] == [[True, "Failed", ABORTED]]


def test_two_ranks_keep_and_release_pages_together(seen: dict[str, Any]) -> None:
    kinds = [f"{kind}, sent by {rank}" for kind in ("tensor", "context") for rank in range(2)]
    of_each = {kind: [[], [], ["kv", "metadata"], []] for kind in kinds}
    assert seen["one_rank_is_still_sending"] == [of_each, of_each]
    assert seen["one_rank_has_its_acknowledgement"] == [[False, False, True], [False, False, True]]


def test_a_decode_stage_passes_on_what_it_has_done_and_frees_what_all_agreed_on(seen: dict[str, Any]) -> None:
    marks = ["dsv4-failed:one", "dsv4-failed:two"]
    acknowledged = {"said": [True], "passed on": True}
    assert seen["what_stages_agree_on"] == {
        "ended": ["arrived", "one", "two", *marks],
        "without a list": [None, ["one", "two", "arrived", "waits"]],
        "passed on": ["arrived", "one", "two", *marks, "unknown here"],
        "waits": ["waits"],
        "runs": ["arrived"],
        "held": [2, []],
        "after the engine's patience": [[], [], 2],
        "two is acknowledged": {**acknowledged, "not agreed on yet": [[], 2], "released": ["two"], "held": 1},
        "one is acknowledged": {**acknowledged, "not agreed on yet": [[], 1], "released": ["two", "one"], "held": 0},
    }


def test_pages_that_a_silent_prefill_may_write_into_are_kept_until_it_has_ended(seen: dict[str, Any]) -> None:
    """It has no connection and answers none, and its transfer may go on all the same: on another network, or later."""
    kept = [1, []]
    assert seen["a_prefill_that_falls_silent"] == {
        "alive": kept,
        "silent": kept,
        "new requests go elsewhere": [True],
        "silent for long": kept,
        "ended": [0, ["request"]],
    }


@pytest.mark.parametrize("backend", ["nixl", "mooncake"])
def test_the_first_is_who_is_sent_before_anything_has_arrived_over_its_connection(
    seen: dict[str, Any], backend: str
) -> None:
    size = "up_to_1MiB"
    assert seen["who_is_the_first"][backend] == {
        "fails": "first",
        "arrives": "first",
        "the next": size,
        "another decode": ["first", size],
        "registered anew under way": "first",
        "and the next": size,
        "two at once": ["first", "first"],
        "one of two ranks is new": ["first", size],
        "nothing is sent to the new one": size,
    }


def test_a_connection_that_nixl_makes_anew_has_its_first_as_well(seen: dict[str, Any]) -> None:
    assert seen["a_connection_that_nixl_makes_anew"] == ["first", "up_to_1MiB", "first", "up_to_1MiB"]


def test_strata_are_by_the_pages_that_decode_has_not_got(seen: dict[str, Any]) -> None:
    by_size = ["up_to_1MiB", "up_to_1MiB", "up_to_16MiB", "up_to_16MiB", "up_to_256MiB", "up_to_4GiB", "more"]
    assert seen["strata_by_size"] == [by_size, "up_to_1MiB", 2 << 16, "up_to_1MiB"]
