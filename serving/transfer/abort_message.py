"""Decode's word that a request was given up, to a NIXL prefill that does not know it."""

import logging

from serving.transfer.statuses import FAILED, SUCCESS
from serving.untyped import Untyped

logger = logging.getLogger(__name__)

_ABORT = b"ABORT"
REASON = "Decode gave this request up."


def understand_abort(manager: Untyped, *_: Untyped, **__: Untyped) -> None:
    """Before a NIXL prefill manager starts to read its `server_socket`: what it reads has no ABORT in it any more."""
    receive = manager.server_socket.recv_multipart

    def receive_the_others(*args: Untyped, **named: Untyped) -> Untyped:
        while True:
            message = receive(*args, **named)
            if message[0] != _ABORT:
                return message
            give_up(manager, message)

    manager.server_socket.recv_multipart = receive_the_others


def give_up(manager: Untyped, message: list[bytes]) -> None:
    """Fail the room that an ABORT names, if it has not ended: its transfer stops before the next chunk."""
    try:
        room = int(message[1])
    except (IndexError, ValueError):
        logger.warning("dsv4: an ABORT that names no room was dropped: %r", [frame[:32] for frame in message[:4]])
        return
    ended = manager.request_status.get(room, SUCCESS) == SUCCESS
    logger.info("dsv4: ABORT for room %s, which %s", room, "has ended or is not known" if ended else "fails")
    if not ended:
        manager.record_failure(room, REASON)
        manager.update_status(room, FAILED)
