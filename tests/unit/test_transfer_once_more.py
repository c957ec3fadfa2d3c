"""A chunk whose connection was lost is sent once more, whole and in its turn, or its request fails as before."""

from functools import cache
from typing import Any

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)


ARRIVED = [["arrived", None]]
CERTAIN = {
    "a post": ["KV of 0", "KV of 1", "token"],
    "a handle": ["KV of 0", "token", "KV of 0", "token"],
    "a write": ["KV of 0", "token", "KV of 0", "token"],
    "a write beside one that goes on": ["KV of 0", "token", "KV of 0", "token"],
    "a second post": ["KV of 0", "KV of 0", "token"],
}
"""What is written in all, where it is certain that nothing of the first try can arrive after the second."""
UNCERTAIN = ["NIXL does not let go", "staging", "a write goes on", "connected just now", "another cause", "twice"]


@cache
def seen(arm: str) -> dict[str, Any]:
    return answer("lost_connections", arm)


def test_nothing_is_sent_twice_when_nothing_is_lost() -> None:
    assert seen("patched")["nothing"] == seen("stock")["nothing"]


@pytest.mark.parametrize("way", CERTAIN)
def test_it_is_sent_again_before_any_later_chunk_of_its_room(way: str) -> None:
    assert seen("patched")[way] == {"written": CERTAIN[way], "told": ARRIVED, "outstanding": 0, "connected": True}


@pytest.mark.parametrize("way", UNCERTAIN)
def test_what_is_not_certain_or_was_tried_fails_and_decode_is_told(way: str) -> None:
    after = seen("patched")[way]
    assert {status for status, _ in after["told"]} == {"failed"}
    assert (after["outstanding"], after["written"]) == (0, seen("stock")[way]["written"])


def test_a_request_that_ended_while_the_connection_was_made_is_not_sent() -> None:
    after = seen("patched")["the request ends meanwhile"]
    assert (after["written"], after["told"], after["outstanding"]) == ([], [], 0)


@pytest.mark.parametrize("way", CERTAIN)
def test_the_installed_sglang_still_fails_the_request(way: str) -> None:
    """Once this fails, look whether `peer-reconnect` has to send again."""
    assert ["arrived", None] not in seen("stock")[way]["told"]
