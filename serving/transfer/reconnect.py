"""A NIXL peer whose connection was lost and that lives is connected again.

NIXL keeps a remote agent's metadata after its connection has died, and says that it is valid; SGLang registers a peer
anew only when NIXL says that it is not. So every transfer to that peer fails from then on, until prefill is restarted.

Closing the connection settles what could not be settled before: no write that was posted on it can arrive any more. So
decode is told then that its pages are free, which SGLang never says of a room whose handles failed in doubt.
"""

import logging
import sys
import time
from collections.abc import Mapping

from serving.untyped import Untyped

logger = logging.getLogger(__name__)

AT_MOST_EVERY_S = 1.0
"""How often one peer's registration is dropped: as often as SGLang itself rebuilds it."""


def in_doubt(_: Untyped, manager: Untyped, room: int) -> None:
    """In place of SGLang's decision that a room will never be acknowledged: it counts as one more that is running.

    The worker that calls this comes to `reload_peers` next, which closes the connection.
    """
    manager._staging_outstanding[room] += 1
    _doubtful(manager).add(room)


def reload_peers(original: Untyped, manager: Untyped, room_transfer_infos: Mapping[str, Untyped]) -> None:
    """Around SGLang's look at the peers of a room whose transfer failed, in the worker that alone uses them."""
    rooms = {info.room for info in room_transfer_infos.values()} & _doubtful(manager)
    are_gone = True
    if rooms or is_about_the_connection(sys.exception()):
        # All of them, also after one that NIXL does not let go of.
        dropped = [_drop(manager, name, at_once=bool(rooms)) for name in room_transfer_infos]
        are_gone = all(dropped)
    for room in rooms:
        _tell(manager, room, room_transfer_infos, sys.exception())
        _doubtful(manager).discard(room)
        manager._staging_outstanding.pop(room, None)
        if not are_gone:
            # As SGLang has it: decode is never told that its pages are free, for something may still write into them.
            manager._deferred_ack_targets.pop(room, None)
            manager._deferred_ack_poisoned_rooms.add(room)
        manager._maybe_ack_drained_abort(room)
    original(manager, room_transfer_infos)


def close(manager: Untyped, room: int, room_transfer_infos: Mapping[str, Untyped], *, at_once: bool) -> bool:
    """Close the connections of a room whose transfer failed; whether nothing can arrive on them any more.

    It is in doubt no more then. SGLang's look at its peers, which comes next, connects them again.
    """
    is_doubtful = room in _doubtful(manager)
    if not all(_drop(manager, name, at_once=at_once or is_doubtful) for name in room_transfer_infos):
        return False
    if is_doubtful:
        _doubtful(manager).discard(room)
        manager._staging_outstanding[room] -= 1
    return True


def _tell(manager: Untyped, room: int, infos: Mapping[str, Untyped], error: BaseException | None) -> None:
    """Tell decode that a room failed, which SGLang leaves to decode's own timer as long as a handle may be running."""
    from sglang.srt.disaggregation.base import KVPoll

    manager.send_kv_status_message(
        targets=[(info.endpoint, info.dst_port) for info in infos.values() if not info.is_dummy],
        bootstrap_room=room,
        status=KVPoll.Failed,
        failure_reason=str(error),
    )


def _doubtful(manager: Untyped) -> set[int]:
    """The rooms of this manager of which a handle may still be running."""
    rooms: set[int] = manager.__dict__.setdefault("dsv4_doubtful", set())
    return rooms


def is_about_the_connection(error: BaseException | None) -> bool:
    """Whether a transfer worker's error says of a transfer that its connection failed, or may have."""
    from sglang.srt.disaggregation.nixl.conn import _NIXL_TRANSPORT_ERRORS

    if isinstance(error, _NIXL_TRANSPORT_ERRORS) or isinstance(error and error.__cause__, _NIXL_TRANSPORT_ERRORS):
        return True
    # A handle that ended in an error says no more than that; SGLang raises it in its own words.
    return isinstance(error, RuntimeError) and str(error).startswith("NIXL transfer")


def _drop(manager: Untyped, name: str, *, at_once: bool) -> bool:
    """Close the connection to a peer; whether there is none now."""
    if not manager.agent.check_remote_metadata(name):
        return True
    with manager._peer_reload_lock:
        last = manager._peer_reload_times.get(name)
        if not at_once and last is not None and time.monotonic() - last < AT_MOST_EVERY_S:
            return False
        try:
            manager.agent.remove_remote_agent(name)
        except Exception:
            # NIXL's errors have no common class, and the worker that this runs in has nobody who would start it again.
            logger.exception("dsv4 reconnect peer=%s: NIXL does not let go of it", name)
            return False
        # SGLang rebuilds a peer once a second at most, and would leave out one that it has just dropped.
        manager._peer_reload_times.pop(name, None)
    peer = manager.decode_kv_args_table.get(name)
    address = f"{peer.endpoint}:{peer.dst_port}" if peer is not None else "unknown"
    logger.warning("dsv4 reconnect peer=%s endpoint=%s", name, address)
    return True
