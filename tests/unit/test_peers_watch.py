"""What becomes of the requests of a decode worker that dies, on SGLang's own managers."""

from typing import Any

import pytest

from tests.engine_process import answer


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What became of the rooms of each scene, by the kind of map that statuses are kept in."""
    return answer("peers_watch")


@pytest.mark.parametrize("kind", ["dict", "store"])
def test_rooms_fail_with_their_worker_and_only_then(found: dict[str, Any], kind: str) -> None:
    scenes = found[kind]
    assert scenes["a_worker_dies"] == {
        "before": ["Transferring", "Bootstrapping", "Success", "Bootstrapping"],
        "at once": ["Failed decode", "Bootstrapping", "Success", "Failed decode"],
        "after the grace": ["Failed no"],
        "told": 0,
    }
    assert scenes["nobody_ever_registered"] == ["Bootstrapping"]
    assert scenes["another_registers_after_the_last_one_died"] == ["Bootstrapping"]
    assert scenes["a_worker_that_was_gone_is_named_and_there"] == ["Bootstrapping"]


@pytest.mark.parametrize("kind", ["dict", "store"])
def test_every_decode_hears_of_a_room_that_prefill_gave_up(found: dict[str, Any], kind: str) -> None:
    assert found[kind]["prefill_gives_up_a_room"] == [[9, "Failed"], [9, "Failed"]]


@pytest.mark.parametrize("kind", ["dict", "store"])
def test_a_room_that_decode_asks_for_and_nobody_opens_is_closed_again(found: dict[str, Any], kind: str) -> None:
    assert found[kind]["nobody_opens_a_room"] == {
        "before": ["WaitingForInput", "WaitingForInput", "Failed", "Failed"],
        "left of it": [False] * 6,
        "the late one": ["WaitingForInput"],
        "one that prefill ends": ["Failed"],
        "its half, later still": ["Failed no"],
    }


@pytest.mark.parametrize("kind", ["dict", "store"])
def test_a_prefill_that_takes_up_no_request_is_waited_for(found: dict[str, Any], kind: str) -> None:
    assert found[kind]["prefill_is_in_a_long_pass"] == {"during": ["WaitingForInput"], "closed after it": True}
