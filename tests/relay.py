"""A TCP relay that can go deaf: it keeps its connections and forwards nothing, as a network does
that drops every packet without a word to either side. It can also cut them."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


class Relay:
    """Listens on `port` and forwards to `to`."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._deaf = threading.Event()
        self._cut = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def go_deaf(self) -> None:
        """Forward nothing from now on, and accept nobody."""
        self._deaf.set()

    def hear(self) -> None:
        """Forward again."""
        self._deaf.clear()

    def cut(self) -> None:
        """Close the connections that are open now."""
        self._cut.set()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)

    def _work(self) -> None:
        while not self._stopped.is_set():
            if self._cut.is_set():
                self._cut.clear()
                for end in list(self._peers):
                    self._drop(end)
            if self._deaf.is_set():
                self._stopped.wait(0.02)
                continue
            for key, _ in self._selector.select(0.02):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._forward(key.fileobj)
        for end in list(self._peers):
            self._drop(end)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection((LOOPBACK, self._to))
        for end, other in ((near, far), (far, near)):
            self._peers[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
            self._peers[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        for each in (end, self._peers.get(end)):
            if each in self._peers:
                assert each is not None
                self._selector.unregister(each)
                del self._peers[each]
                each.close()


@contextlib.contextmanager
def relay(to: int) -> Iterator[Relay]:
    """A relay for the length of a block."""
    started = Relay(to)
    try:
        yield started
    finally:
        started.stop()
