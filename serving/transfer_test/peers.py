"""The ranks of a test as its source side sees them: asked with deadlines, and named when they are gone."""

import hmac
import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from serving.transfer_test import wire
from serving.transfer_test.rank import DESTINATION, FAILED, SOURCE, UNKNOWN

_HELLO_WITHIN_S: Final = 5.0


@dataclass(frozen=True)
class Who:
    """A rank's place in the test."""

    side: str
    rank: int

    def __str__(self) -> str:
        return f"{self.side} rank {self.rank}"


@dataclass(frozen=True)
class Peer:
    """A rank that has joined."""

    who: Who
    pid: int
    host: str
    device: str
    line: wire.Line

    def __str__(self) -> str:
        return f"{self.who} (pid {self.pid} on {self.host})"


class Broken(Exception):
    """A rank is gone, hangs, or could not do what it was told: the test ends here.

    `meaning` is `failed` or `unknown`, as of a rank's own answer; `who` is the rank, if it is one.
    """

    def __init__(self, what: str, meaning: str, who: Who | None = None) -> None:
        super().__init__(what)
        self.meaning = meaning
        self.who = who


def listen(address: tuple[str, int]) -> socket.socket:
    """Where the ranks join.

    Raises:
        Broken: nobody can listen there.
    """
    try:
        return socket.create_server(address, backlog=64)
    except OSError as error:
        raise Broken(f"nobody can listen on {address[0]}:{address[1]} here: {error}", UNKNOWN) from error


def gather(server: socket.socket, wanted: Iterable[Who], token: str, within_s: float) -> dict[Who, Peer]:
    """Wait until all of them have joined. Whoever does not know the token is turned away.

    Raises:
        Broken: some have not.
    """
    end = time.monotonic() + within_s
    missing = set(wanted)
    found: dict[Who, Peer] = {}
    while missing:
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, _ = server.accept()
        except TimeoutError as error:
            for joined in found.values():
                joined.line.close()
            names = ", ".join(sorted(map(str, missing)))
            raise Broken(f"{names} did not join within {within_s:g} s", UNKNOWN) from error
        line = wire.Line(connection)
        with suppress(wire.Late, wire.Lost, KeyError, TypeError):
            peer = _peer(line, token)
            if peer is not None and peer.who in missing:
                missing.remove(peer.who)
                found[peer.who] = peer
                continue
        line.close()
    return found


def _peer(line: wire.Line, token: str) -> Peer | None:
    hello = line.receive(_HELLO_WITHIN_S)
    if not hmac.compare_digest(str(hello["token"]).encode(), token.encode()):
        return None
    return Peer(Who(hello["side"], hello["rank"]), hello["pid"], hello["host"], hello["device"], line)


class Peers:
    """All ranks of a test, to be asked one by one or several at once."""

    def __init__(self, found: Mapping[Who, Peer]) -> None:
        self._found = dict(found)

    def of(self, side: str) -> tuple[Peer, ...]:
        """The ranks of one side, by number."""
        return tuple(sorted((peer for who, peer in self._found.items() if who.side == side), key=lambda p: p.who.rank))

    @property
    def sources(self) -> tuple[Peer, ...]:
        return self.of(SOURCE)

    @property
    def destinations(self) -> tuple[Peer, ...]:
        return self.of(DESTINATION)

    def ask(self, peer: Peer, task: wire.Message, within_s: float, doing: str) -> wire.Message:
        """Have one rank do something (see `ask_all`)."""
        return self.ask_all({peer: task}, within_s, doing)[peer]

    def ask_all(self, tasks: Mapping[Peer, wire.Message], within_s: float, doing: str) -> dict[Peer, wire.Message]:
        """Have several ranks do something at the same time. `doing` says what, for the sentence if one does not answer.

        Raises:
            Broken: one of them is gone, does not answer, or says that it could not.
        """
        for peer, task in tasks.items():
            with suppress(wire.Lost):
                # Who is gone is found by the wait for its answer, which names it.
                peer.line.send(task)
        end = time.monotonic() + within_s
        answers: dict[Peer, wire.Message] = {}
        while waited_for := [peer for peer in tasks if peer not in answers]:
            ready = [peer for peer in waited_for if peer.line.waiting]
            if not ready:
                lines, _, _ = select.select([p.line for p in waited_for], [], [], max(0.0, end - time.monotonic()))
                ready = [peer for peer in waited_for if peer.line in lines]
            if not ready:
                names = ", ".join(map(str, waited_for))
                hang = "does not answer" if len(waited_for) == 1 else "do not answer"
                raise Broken(f"{names} {hang} after {within_s:.3g} s, while {doing}", FAILED, waited_for[0].who)
            for peer in ready:
                answers[peer] = self._answer(peer, end, within_s, doing)
        return answers

    def _answer(self, peer: Peer, end: float, within_s: float, doing: str) -> wire.Message:
        try:
            answer = peer.line.receive(max(0.1, end - time.monotonic()))
        except wire.Late as error:
            raise Broken(f"{peer} does not answer after {within_s:.3g} s, while {doing}", FAILED, peer.who) from error
        except wire.Lost as error:
            raise Broken(f"{peer} is gone, while {doing}", FAILED, peer.who) from error
        if "error" in answer:
            raise Broken(f"{peer}, while {doing}: {answer['error']}", answer["meaning"], peer.who)
        return answer

    def close(self) -> None:
        """Tell all of them to end."""
        for peer in self._found.values():
            with suppress(wire.Lost):
                peer.line.send({"do": "close"}, within_s=1.0)
            peer.line.close()
