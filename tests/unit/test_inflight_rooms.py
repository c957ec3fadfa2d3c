"""What becomes of rooms that end badly on prefill, on SGLang's own managers, senders and queue."""

from typing import Any

import pytest

from tests.engine_process import answer

BACKENDS = ("nixl", "mooncake")
ABORTED = "Aborted by AbortReq."


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What was seen in each scene."""
    return answer("inflight_rooms")


@pytest.mark.parametrize(("backend", "frames"), [("nixl", 5), ("mooncake", 4)])
def test_decode_hears_of_an_abort_on_prefill_once_and_why(seen: dict[str, Any], backend: str, frames: int) -> None:
    assert seen["an_abort_on_prefill"][backend] == {
        "frames": frames,
        "last frame": ABORTED,
        "parsed": [True, "Failed", 0, ABORTED],
        "told again": [],
        "poll": "Failed",
        "status": "Failed",
    }
    assert seen["an_abort_after_the_worker_forgot_where_to"][backend] == [True, "Failed", ABORTED]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handshake_for_a_room_that_ended_is_answered_and_opens_none(seen: dict[str, Any], backend: str) -> None:
    assert seen["a_handshake_after_the_end"][backend] == {
        "at the end": [["Failed", ABORTED]],
        "late": [[True, "Failed", ABORTED]],
        "opened": False,
        "unknown went through": True,
        "unknown has a status": True,
        "a new request of that number": "WaitingForInput",
        "and it is told": [],
    }
    assert seen["a_success_is_not_remembered"][backend] is None


def test_a_handshake_that_is_repeated_opens_no_room_that_ended_well(seen: dict[str, Any]) -> None:
    assert seen["a_repeated_handshake"]["nixl"] == {
        "arrived": True,
        "goes on": "Transferring",
        "opened": False,
        "a new request of that number": "WaitingForInput",
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_worker_finds_where_to_send_of_a_room_that_is_gone(seen: dict[str, Any], backend: str) -> None:
    found = seen["clear_step_by_step"][backend]
    assert found.pop("Success")[-1] == [None, False]
    assert found == {status: [[status, True], [status, False], [None, False]] for status in found}
    assert set(found) == {"Failed", "Bootstrapping", "WaitingForInput", "Transferring"}


def test_pages_are_kept_until_nothing_reads_them(seen: dict[str, Any]) -> None:
    assert seen["a_failed_request_whose_chunk_is_being_sent"] == {
        "at the end": {"done": 1, "answered": 1, "released": []},
        "later": {"released": [], "settling": 1, "oldest": 5.0},
        "shown": 1,
        "settled": ["kv", "metadata"],
        "settling": 0,
        "left": [],
        "buffers": 8,
    }


def test_pages_that_nothing_can_read_are_released_at_once(seen: dict[str, Any]) -> None:
    assert seen["others_that_end"] == {
        "success": [["kv", "metadata"], []],
        "failed": [["kv", "metadata"], []],
        "failed, and cannot be waited for": [["kv", "metadata"], ["count"]],
    }


def test_the_watchdog_fires_at_its_deadline(seen: dict[str, Any]) -> None:
    found = seen["at_its_deadline"]
    message = found.pop("message")
    assert message.startswith("inflight timeout: the KV of this request was in state transferring for 10.0 s")
    assert "the limit is 10 s (SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT)" in message
    assert found == {
        "early": [],
        "late": True,
        "status": 504,
        "fires": 2,
        "reported": [
            ["fired", "transferring"],
            ["fired", "waiting_for_input"],
            ["left", "timeout", 10.0],
            ["left", "timeout", 10.0],
        ],
        "left": [],
    }


def test_a_success_on_one_rank_alone_is_none_among_several(seen: dict[str, Any]) -> None:
    assert seen["success_on_this_rank"] == {
        "alone": ["Success", "Success", False],
        "answering": ["Failed", "Failed", True],
        "other": ["Success", "Failed", True],
    }


def test_after_a_long_pass_what_has_arrived_is_not_ended(seen: dict[str, Any]) -> None:
    assert seen["a_pass_that_took_long"] == [True, True, 1]


def test_a_rank_joins_another_that_timed_out(seen: dict[str, Any]) -> None:
    assert seen["another_rank_ended_it"] == {
        "about as old": [504, True, "timeout"],
        "younger": [500, False, "failed"],
        "one rank": [500, False, "failed"],
        "a reason here": [500, False, "failed"],
    }


def test_a_parked_request_has_no_clock_until_it_is_asked_for(seen: dict[str, Any]) -> None:
    assert seen["a_parked_request"] == {"parked": [0, 0.0], "asked for": [[], []], "in the end": True}


def test_an_unstamped_request_is_counted_and_gets_its_clock(seen: dict[str, Any]) -> None:
    assert seen["an_unstamped_request"] == {"first": [[], [["unstamped"]]], "ended": [[], True]}


def test_another_timeout_counts_for_what_is_in_the_queue(seen: dict[str, Any]) -> None:
    assert seen["another_timeout"] == {"off": [], "refused": 4, "set": 1, "fires": 1}


def test_a_timeout_on_a_lease_goes_back_by_itself(seen: dict[str, Any]) -> None:
    key = "dsv4_prefill_inflight_timeout"
    assert seen["a_timeout_on_a_lease"] == {
        "said": [
            [3.0, 10.0, 5.0],
            [3.0, 10.0, 1.0],
            [3.0, 10.0, 2.0],
            [3.0, 10.0, 0.5],
            f"{key}_was is 10, and 3 s are in force",
            [10.0, 10.0, 0.0],
            [3.0, 10.0, 30.0],
            [10.0, 10.0, 0.0],
            [10.0, 10.0, 0.0],
            f"{key}_lease of 0 ends a lease, and no {key} goes with it",
            f"{key}_lease must be 0 (end it) or from 1 to 3600 seconds, not 0.5",
            [3.0, 10.0, 30.0],
            [20.0, 20.0, 0.0],
            [20.0, 20.0, 0.0],
        ],
        "ended": True,
    }


def test_a_request_that_failed_on_one_stage_fails_on_all(seen: dict[str, Any]) -> None:
    assert seen["failed_on_another_stage"] == {
        "left": True,
        "why": True,
        "kept": [],
        "settled here": True,
        "released": ["kv", "metadata"],
        "left of it": [],
    }


def test_what_all_stages_agreed_on_stays_so(seen: dict[str, Any]) -> None:
    """Else one stage would keep pages for ever: the others have nothing to say of a request that succeeded."""
    assert seen["ended_here_after_all_agreed_on_its_success"] == [[None, ""], ["kv", "metadata"], 0, []]


def test_a_success_that_was_polled_can_be_taken_back(seen: dict[str, Any]) -> None:
    assert seen["taken_back"] == {
        "sender": ["Success", "Failed", True],
        "receiver": ["Success", "Failed", True],
        "gone": ["Success", "Failed", False],
    }


def test_a_lost_connection_is_dropped_once_and_made_again(seen: dict[str, Any]) -> None:
    found = seen["reconnects"]
    again = {"counted": 1, "poisoned": False, "agent": ["removed", "added"], "heard": [], "still counted": 1}
    for error in ("disconnect", "cause", "handle", "again at once"):
        assert found[error] == again
    assert found["other"] == {**again, "agent": []}


def test_decode_hears_of_a_room_in_doubt_once_its_connection_is_closed(seen: dict[str, Any]) -> None:
    assert seen["reconnects"]["doubt"] == {
        "counted": 2,
        "poisoned": False,
        "agent": ["removed", "added"],
        "heard": [True, "Failed", "no such index", True, 3],
        "still counted": 0,
    }


def test_a_prefill_that_is_replaced_is_dropped_once_and_a_living_one_is_not(seen: dict[str, Any]) -> None:
    assert seen["a_prefill_that_is_replaced"] == {
        "before": [],
        "failures": ["prefill:1"],
        "rooms": {"prefill:1": "Failed", "prefill:2": "Bootstrapping"},
        "reasons": ["Lost connection with prefill"],
        "may be freed": [True, False, True],
        "cached": ["prefill:1_0_0_0", "prefill:2_0_0_0"],
    }
