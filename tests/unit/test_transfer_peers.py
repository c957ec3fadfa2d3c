"""The ranks of a transfer test as the source side sees them, and a rank as it looks at what arrives."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving.transfer_test import memory, pattern, wire
from serving.transfer_test.agent import Agent
from serving.transfer_test.memory import Slot
from serving.transfer_test.peers import Broken, Peer, Peers, Who, gather
from serving.transfer_test.rank import DESTINATION, FAILED, SOURCE, UNKNOWN, Rank, serve

SIZE = 1 << 16


@pytest.fixture
def pair() -> Iterator[tuple[Peer, wire.Line]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    with here, there:
        yield Peer(Who(DESTINATION, 1), 4711, "box", "cpu", wire.Line(here)), wire.Line(there)


def asked(peer: Peer, within_s: float = 5.0) -> wire.Message:
    return Peers({peer.who: peer}).ask(peer, {"do": "sweep", "after_s": 0.0}, within_s, "looking")


def test_a_rank_that_does_not_answer_is_named(pair: tuple[Peer, wire.Line]) -> None:
    with pytest.raises(Broken) as raised:
        asked(pair[0], 0.1)
    assert str(raised.value) == "destination rank 1 (pid 4711 on box) does not answer after 0.1 s, while looking"
    assert (raised.value.meaning, raised.value.who) == (FAILED, Who(DESTINATION, 1))


def test_a_rank_that_sends_half_an_answer_hangs_too(pair: tuple[Peer, wire.Line]) -> None:
    pair[1]._connection.sendall(b'{"what"')
    with pytest.raises(Broken, match="does not answer"):
        asked(pair[0], 0.2)


def test_a_rank_that_has_gone_is_named(pair: tuple[Peer, wire.Line]) -> None:
    pair[1].close()
    with pytest.raises(Broken, match=r"destination rank 1 \(pid 4711 on box\) is gone, while looking"):
        asked(pair[0])


@pytest.mark.parametrize("meaning", [UNKNOWN, FAILED])
def test_what_a_rank_could_not_do_is_passed_on(pair: tuple[Peer, wire.Line], meaning: str) -> None:
    pair[1].send({"error": "no room", "meaning": meaning})
    with pytest.raises(Broken, match="no room") as raised:
        asked(pair[0])
    assert raised.value.meaning == meaning


def test_who_does_not_know_the_word_is_turned_away_and_who_stays_away_is_named() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def join(word: str, rank: int) -> None:
        line = wire.connect(server.getsockname(), 5.0)
        line.send({"token": word, "side": SOURCE, "rank": rank, "pid": 1, "host": "box", "device": "cpu"})
        with pytest.raises(wire.Lost):
            line.receive(5.0)
        line.close()

    with server, ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(join, word, rank) for word, rank in (("wrong", 0), ("right", 1))]
        with pytest.raises(Broken, match=r"^source rank 0 did not join within 0.5 s$"):
            gather(server, [Who(SOURCE, 0), Who(SOURCE, 1)], "right", 0.5)
        for one in joining:
            one.result()


class Told(Agent):
    """An agent of whom others tell that writes have arrived; `does` happens before the word does."""

    def __init__(self, words: list[str], does: Callable[[], None]) -> None:
        self._told = [words]
        self._does = does

    def arrivals(self) -> list[bytes]:
        if not self._told:
            return []
        self._does()
        return [word.encode() for word in self._told.pop()]


def rank_with(words: list[str], does: Callable[[memory.Memory], None]) -> Rank:
    rank = Rank(DESTINATION, 0, "cpu")
    there = rank._memory = memory.allocate("cpu", SIZE)
    rank._agent = Told(words, lambda: does(there))
    return rank


SLOT = Slot(4096, 4096, pattern.tag(0, 0, 4096, 1))
EXPECTED: Mapping[str, Any] = {
    "do": "expect",
    "arrivals": [{"word": "w", "offset": SLOT.offset, "size": SLOT.size, "tag": SLOT.tag}],
    "within_s": 0.3,
    "at_once": True,
}


def test_a_write_that_arrived_is_taken_and_its_place_made_poison() -> None:
    rank = rank_with(["w"], lambda there: there.fill(SLOT))
    assert rank.expect(EXPECTED) == {"missing": [], "stray": [], "problems": []}
    assert rank.sweep({"after_s": 0.0}) == {"what": None}


def test_a_write_that_comes_after_its_word_is_late() -> None:
    def later(there: memory.Memory) -> None:
        threading.Timer(0.05, there.fill, [SLOT]).start()

    (problem,) = rank_with(["w"], later).expect(EXPECTED)["problems"]
    assert problem["late"]
    assert "nothing was written there" in problem["what"]


def test_a_write_that_comes_after_its_place_was_looked_at_is_found_later() -> None:
    rank = rank_with(["w"], lambda there: there.fill(SLOT))
    rank.expect(EXPECTED)
    rank.memory.fill(SLOT)
    assert "word 0 of write 1, from source rank 0" in rank.sweep({"after_s": 0.0})["what"]
    assert rank.sweep({"after_s": 0.0}) == {"what": None}


def test_words_that_did_not_come_and_words_of_nobody_are_said() -> None:
    answer = rank_with(["another"], lambda _: None).expect(EXPECTED)
    assert (answer["missing"], answer["stray"]) == (["w"], ["another"])


def test_a_rank_answers_with_its_error_and_goes_on(pair: tuple[Peer, wire.Line]) -> None:
    rank = Rank(DESTINATION, 1, "cpu")
    thread = threading.Thread(target=serve, args=(rank, pair[1], 5.0))
    thread.start()
    with pytest.raises(Broken, match="AssertionError"):
        asked(pair[0])
    with pytest.raises(Broken, match="AssertionError"):
        asked(pair[0])
    Peers({pair[0].who: pair[0]}).close()
    thread.join(5.0)
    assert not thread.is_alive()
