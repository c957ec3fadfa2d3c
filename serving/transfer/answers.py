"""What prefill has told decode of a transfer is told again when the connection that it went by is lost.

SGLang notices a broken connection when it sends the next message, makes a new one, and repeats nothing: decode then
waits for the end of a transfer that it was told of. Heard twice, the message does what it did the first time: a room
that has ended is not opened by it, and the ranks that have answered are a set.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

TAG: Final = b"KV_STATUS"
"""Of NIXL's messages. Mooncake's have none, and are left alone."""

RECENT_S: Final = 3.0
"""A connection that broke later than this after a message had delivered it."""

LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Sent:
    """A message to a decode rank, and the socket that it went by."""

    endpoint: str
    parts: list[bytes]
    is_ipv6: bool
    socket: Untyped
    at_s: float


class Answers:
    """What one prefill rank has sent of late. The senders note, and one thread looks after it."""

    def __init__(self, manager: Untyped, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._clock = clock
        self._sent: list[Sent] = []
        self._lock = threading.Lock()
        self._some = threading.Event()

    def note(self, endpoint: str, parts: list[bytes], *, is_ipv6: bool) -> None:
        """This was sent just now."""
        socket = self._manager._socket_cache.get(endpoint)
        with self._lock:
            self._sent.append(Sent(endpoint, parts, is_ipv6, socket, self._clock()))
        self._some.set()

    def run(self) -> None:
        """Look for ever; at rest while nothing was sent of late."""
        while True:
            self._some.wait()
            time.sleep(LOOK_EVERY_S)
            try:
                self.look()
            except Exception:
                # A thread that ends would leave every later loss unnoticed.
                logger.exception("dsv4 answers: a look failed")

    def look(self) -> None:
        """Repeat what went by a socket that has lost its connection since, or was replaced."""
        now = self._clock()
        with self._lock:
            self._sent = [sent for sent in self._sent if now - sent.at_s <= RECENT_S]
            if not self._sent:
                self._some.clear()
            recent = list(self._sent)
        for endpoint in {sent.endpoint for sent in recent}:
            of_endpoint = [sent for sent in recent if sent.endpoint == endpoint]
            socket = self._connected(endpoint, is_ipv6=of_endpoint[0].is_ipv6)
            lost = [sent for sent in of_endpoint if sent.socket is not socket]
            with self._lock:
                self._sent = [sent for sent in self._sent if sent not in lost]
            for sent in lost:
                logger.warning("dsv4 status repeated room=%s to=%s: its connection broke", _room(sent), endpoint)
                self._manager._send_multipart_locked(endpoint, sent.parts, is_ipv6=sent.is_ipv6)

    def _connected(self, endpoint: str, *, is_ipv6: bool) -> Untyped:
        """The socket that the next message would go by: SGLang replaces one whose connection has broken."""
        with self._manager._socket_send_locks[endpoint]:
            return self._manager._connect(endpoint, is_ipv6=is_ipv6)


def send(original: Untyped, manager: Untyped, endpoint: str, parts: list[bytes], is_ipv6: bool = False) -> None:
    """Around the sending of any message to a decode rank: one that says how a transfer stands is remembered."""
    import zmq

    try:
        original(manager, endpoint, parts, is_ipv6=is_ipv6)
    except zmq.ZMQError:
        # The socket may have been replaced between being chosen and being used.
        original(manager, endpoint, parts, is_ipv6=is_ipv6)
    if parts and parts[0] == TAG:
        _of(manager).note(endpoint, parts, is_ipv6=is_ipv6)


def _of(manager: Untyped) -> Answers:
    answers: Answers | None = manager.__dict__.get("dsv4_answers")
    if answers is None:
        answers = manager.__dict__["dsv4_answers"] = Answers(manager)
        threading.Thread(target=answers.run, name="dsv4-answers", daemon=True).start()
    return answers


def _room(sent: Sent) -> str:
    return sent.parts[1].decode("ascii", errors="replace")
