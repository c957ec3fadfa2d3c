"""Ctrl-C: the first one asks us to stop at the next safe point, the second stops us now."""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dsv4ctl.errors import Interrupted

_LONGEST_WAIT_S = 1.0


class Interrupts:
    """Whether the person asked us to stop. `sleep` is the sleep to give to `wait_until`: it ends early when asked.

    A signal handler runs in the middle of whatever its thread does, `sleep` included, whose lock a threading.Event
    would take again there and never get. A SimpleQueue is made for being put into at such a moment.
    """

    def __init__(self) -> None:
        self._asked = False
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.signal_name: str | None = None

    def ask(self, signal_name: str) -> None:
        """Record the wish. Called from the signal handler, so it takes no lock."""
        self.signal_name = signal_name
        self._asked = True
        self._alarm.put(None)

    @property
    def asked(self) -> bool:
        return self._asked

    def check(self) -> None:
        """A safe point.

        Raises:
            Interrupted: the person asked us to stop.
        """
        if self.asked:
            raise Interrupted(f"interrupted ({self.signal_name})")

    def sleep(self, seconds: float) -> None:
        """Wait, and be a safe point.

        Raises:
            Interrupted: the person asked us to stop, before or meanwhile.
        """
        end_s = time.monotonic() + seconds
        while not self._asked and (left_s := end_s - time.monotonic()) > 0:
            # A signal between the interpreter's look for one and the wait is handled after the wait only.
            with contextlib.suppress(queue.Empty):
                self._alarm.get(timeout=min(left_s, _LONGEST_WAIT_S))
                self._alarm.put(None)  # for other threads that sleep
        self.check()

    def acknowledge(self) -> None:
        """The wish is being carried out: what follows (cleaning up) is not to be stopped by it."""
        self._asked = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._alarm.get_nowait()


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Route SIGINT, SIGTERM and SIGHUP to an `Interrupts` while the block runs; a second raises KeyboardInterrupt.

    Two signals within a fifth of a second count as one: a terminal and a wrapper such as `make` both deliver Ctrl-C.
    In a thread that is not the main one (as in tests) signals stay as they are.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    first_at: float | None = None

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal first_at
        now = time.monotonic()
        if first_at is None:
            first_at = now
            interrupts.ask(signal.Signals(number).name)
        elif now - first_at > 0.2:
            raise KeyboardInterrupt

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in watched}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
