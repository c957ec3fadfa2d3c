"""The status of every room, kept by rules of its own: a room that has ended stays so, and one that is gone stays gone.

SGLang reads a status, chooses, and writes, in several threads at once and without a lock. Whatever it chose, the rules
are looked at again as it writes, with nothing in between.
"""

import threading

from serving.untyped import Untyped

FAILED, BOOTSTRAPPING, WAITING_FOR_INPUT, TRANSFERRING, SUCCESS = range(5)
"""SGLang's KVPoll: numbers, the same on every version."""

_OPENING = (BOOTSTRAPPING, WAITING_FOR_INPUT)
_TERMINAL = (FAILED, SUCCESS)

# One for all: a process has one or two of these maps, and holds the lock for less than a microsecond.
_lock = threading.Lock()


def may_follow(current: int | None, status: int) -> bool:
    """Whether a room of status `current`, None if there is no such room, can become `status`."""
    if current is None:
        return status in _OPENING
    return current not in _TERMINAL and (status == FAILED or status >= current)


class _Kept:
    """In front of a map's class: a write that breaks the rules does nothing, as SGLang's own refusals do nothing."""

    def __setitem__(self, room: int, status: int) -> None:
        own: Untyped = super()
        with _lock:
            if may_follow(own.get(room), status):
                own.__setitem__(room, status)

    def take_back(self, room: int) -> None:
        """The one exception: a room that ended well on this rank has failed, because it failed on another."""
        own: Untyped = super()
        with _lock:
            if own.get(room) is not None:
                own.__setitem__(room, FAILED)

    def pop(self, room: int, default: Untyped = None) -> Untyped:
        own: Untyped = super()
        with _lock:
            return own.pop(room, default)


class KeptStatuses(_Kept, dict[int, int]):
    """The map of one process. It is read as fast as the dict in whose place it is."""


def kept(statuses: Untyped) -> Untyped:
    """The map to use in place of SGLang's: a new one for a dict, the same one for its store of all pipeline ranks."""
    if type(statuses) is dict:
        return KeptStatuses(statuses)
    if not isinstance(statuses, _Kept):
        kind = type(statuses)
        statuses.__class__ = type(f"Kept{kind.__name__}", (_Kept, kind), {})
    return statuses


def keep_statuses(_result: None, manager: Untyped, *_: Untyped, **__: Untyped) -> None:
    """After a manager is made, before it starts a thread: its map of statuses keeps the rules."""
    manager.request_status = kept(manager.request_status)
