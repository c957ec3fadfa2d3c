"""The threads that hear from the other role: one message that they cannot deal with does not end them.

SGLang starts each of them once, with a loop that keeps nothing between two messages. So the loop is SGLang's own, and
is entered again after an exception; the message that raised it is gone from the socket.
"""

import functools
import inspect
import logging
from collections.abc import Callable

from serving.transfer.taken import Taken
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

_SHOWN_BYTES = 32


Excuse = Callable[[], str | None]
"""Says why a loop that raised may be entered again; None lets it end."""


def started_to_last(original: Callable[..., None], manager: Untyped, *args: Untyped, **named: Untyped) -> None:
    """Around a method of a manager that starts the reader of its `server_socket`: the reader outlives bad messages."""
    taken = Taken(manager.server_socket.recv_multipart)
    manager.server_socket.recv_multipart = taken.take
    seen = 0

    def excuse() -> str | None:
        # Without a new message since the last time it is the socket that fails, and would again.
        nonlocal seen
        if taken.count == seen:
            return None
        seen = taken.count
        return f"a message of {len(taken.last)} frames was dropped ({_first_bytes(taken.last)})"

    _start(original, excuse, manager, *args, **named)


def paced_to_last(original: Callable[..., Untyped], manager: Untyped, *args: Untyped, **named: Untyped) -> Untyped:
    """Around a method of a manager that starts a loop which waits before each pass: it outlives a pass that raises."""
    return _start(original, lambda: "one of its passes was cut short", manager, *args, **named)


def _start(
    original: Callable[..., Untyped], excuse: Excuse, manager: Untyped, *args: Untyped, **named: Untyped
) -> Untyped:
    """Call `original` while its module takes its threads from us."""
    module = inspect.unwrap(original).__globals__
    own = module["threading"]
    module["threading"] = _Threads(own, excuse)
    try:
        return original(manager, *args, **named)
    finally:
        module["threading"] = own


class _Threads:
    """The module `threading`, with threads whose target is entered again as long as there is an excuse."""

    def __init__(self, own: Untyped, excuse: Excuse) -> None:
        self._own = own
        self._excuse = excuse

    def __getattr__(self, name: str) -> Untyped:
        return self._make if name == "Thread" else getattr(self._own, name)

    def _make(self, *args: Untyped, target: Callable[..., None], **named: Untyped) -> Untyped:
        return self._own.Thread(*args, target=functools.partial(_run, target, self._excuse), **named)


def _run(target: Callable[..., None], excuse: Excuse, *args: Untyped, **named: Untyped) -> None:
    while True:
        try:
            return target(*args, **named)
        except Exception as error:
            reason = excuse()
            if reason is None:
                raise
            logger.warning(
                "dsv4: %s could not go on after %s: %s; %s, and the thread goes on",
                target.__name__,
                type(error).__name__,
                error,
                reason,
                exc_info=error,
            )


def _first_bytes(message: Untyped) -> str:
    """What a message begins with: who sent it cannot be asked of a ZMQ socket that only pulls."""
    return " ".join(repr(frame[:_SHOWN_BYTES]) for frame in message[:4])
