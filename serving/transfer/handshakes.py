"""What decode has told prefill is told again when the connection that it went by is lost.

Decode sends each request's pages to prefill in one message and waits for the KV. Over a connection that breaks at that
moment the message is lost without a word: ZeroMQ connects again and repeats nothing. Prefill waits for a decode that
has asked already, decode for a prefill that has not heard it, and the bootstrap timeout ends both after five minutes.
Heard twice, the message does what it did the first time.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from serving.inflight import told
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

RECENT_S: Final = 10.0
"""What was sent longer ago has been heard: prefill has had it for all that time over a connection that held."""

LOOK_EVERY_S: Final = 0.2
MANY: Final = 256
NO_ROOM: Final = b"None"
FRAMES: Final = 32
"""More than any message of SGLang's has; it takes an empty one for absent."""


@dataclass(frozen=True)
class Sent:
    """One message to one prefill rank, for one receiver."""

    receiver: Untyped
    rank: Untyped
    message: list[bytes]
    at_s: float


class Handshakes:
    """The messages to each prefill rank that may have to be sent again. Used by the scheduler and by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[Untyped, list[Sent]] = defaultdict(list)

    def note(self, connection: Untyped, receiver: Untyped, rank: Untyped, message: list[bytes]) -> None:
        """This message is about to go by this connection."""
        now = self._clock()
        with self._lock:
            messages = self._sent[connection]
            messages.append(Sent(receiver, rank, message, now))
            if len(messages) > MANY:
                self._sent[connection] = self._open(messages, now)

    def lost(self, connection: Untyped) -> list[Sent]:
        """The connection broke: what may not have been heard, in the order in which it was sent."""
        with self._lock:
            messages = self._sent[connection] = self._open(self._sent[connection], self._clock())
            return list(messages)

    @staticmethod
    def _open(messages: list[Sent], now_s: float) -> list[Sent]:
        return [sent for sent in messages if now_s - sent.at_s <= RECENT_S and sent.receiver.conclude_state is None]


class Repeater:
    """The thread that notices broken connections, and the sockets by which it does."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._monitors: dict[Untyped, Untyped] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, socket: Untyped, lock: Untyped) -> None:
        """From now on notice when this socket loses its connection."""
        import zmq

        if socket in self._monitors:
            return
        with lock:
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        with self._lock:
            self._monitors[socket] = monitor
        self._begin()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dsv4-handshakes", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                # A thread that ends would leave every later loss unnoticed.
                logger.exception("dsv4 handshakes: a look failed")
                time.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Wait a moment for a broken connection, and repeat what went by it."""
        import zmq

        with self._lock:
            self._monitors = {socket: monitor for socket, monitor in self._monitors.items() if not socket.closed}
            monitors = {monitor: socket for socket, monitor in self._monitors.items()}
        if not monitors:
            time.sleep(LOOK_EVERY_S)
            return
        try:
            broken, _, _ = zmq.select(list(monitors), [], [], LOOK_EVERY_S)
            for monitor in broken:
                monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # SGLang closes the socket of a prefill that it takes for dead, and what was for it fails then.
            logger.debug("dsv4 handshakes: a socket was closed meanwhile: %s", error)
            return
        for monitor in broken:
            for sent in self._handshakes.lost(monitors[monitor]):
                _repeat(sent)


def again(message: list[bytes]) -> list[bytes]:
    """The message as it is repeated: prefill can tell that it is no new one, and what SGLang reads of it is the same.

    The one by which a decode introduces itself is for no room, and stays as it is.
    """
    if message[1] == NO_ROOM:
        return message
    return [*message, *[b""] * (FRAMES - len(message)), told.AGAIN]


def _repeat(sent: Sent) -> None:
    import zmq

    socket, lock = sent.receiver._connect_to_bootstrap_server(sent.rank)
    room = sent.receiver.bootstrap_room
    try:
        with lock:
            if sent.receiver.conclude_state is not None or sent.receiver.abort_notified:
                # Behind an abort it would open a room again whose pages decode gives away.
                return
            socket.send_multipart(again(sent.message), flags=zmq.NOBLOCK)
    except zmq.ZMQError as error:
        logger.warning("dsv4 handshake room=%s cannot be repeated: %s", room, error)
        return
    logger.warning(
        "dsv4 handshake repeated room=%s to=%s:%s: its connection broke",
        room,
        sent.rank["rank_ip"],
        sent.rank["rank_port"],
    )


_handshakes = Handshakes()
_repeater = Repeater(_handshakes)


def send(
    original: Untyped, receiver: Untyped, *, bootstrap_info: Untyped, message: list[bytes], operation: str
) -> bool:
    """Around decode's sending of a message to a prefill rank: it is remembered until it cannot be lost any more."""
    import zmq

    if message[0] != told.NIXL_GUARD:
        # Mooncake's reader has not been looked at for what it makes of further frames.
        return bool(original(receiver, bootstrap_info=bootstrap_info, message=message, operation=operation))
    try:
        socket, lock = receiver._connect_to_bootstrap_server(bootstrap_info)
        _repeater.watch(socket, lock)
        _handshakes.note(socket, receiver, bootstrap_info, message)
    except zmq.ZMQError as error:
        # The engine meets the same error next, and fails the request of it.
        logger.warning("dsv4 handshake room=%s: %s", receiver.bootstrap_room, error)
    return bool(original(receiver, bootstrap_info=bootstrap_info, message=message, operation=operation))
