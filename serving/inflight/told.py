"""Decode is told: of a request that prefill ends itself, and of one that it asks for after the end."""

import time

from serving.inflight.ended_rooms import EndedRooms
from serving.untyped import Untyped

NIXL_GUARD = b"NixlMsgGuard"
"""The first frame of a handshake over NIXL; one over Mooncake begins with the room."""

SEND_WITHIN_MS = 1000
"""What SGLang gives decode for a message to prefill."""

UNKNOWN_REASON = "Prefill ended this request before decode asked for it"

AGAIN = b"dsv4-again"
"""The last frame of a handshake that was sent before, beyond all that SGLang reads."""

here = EndedRooms()
"""Those of the prefill scheduler in this process."""

dropped = EndedRooms()
"""Rooms that decode had asked for and that were closed before a request of prefill opened them: one that comes after
all has lost its decode. Random numbers of 63 bits: none comes again for another request."""

succeeded = EndedRooms(kept_s=60.0)
"""Rooms that ended well: a handshake that is repeated must not open one. A new request of that number may."""


opened: set[int] = set()
"""The rooms that a request of this prefill has opened and not closed. Decode may have asked for others."""


def before_opening(
    _: object, mgr: object, bootstrap_addr: object, bootstrap_room: int, *__: object, **___: object
) -> None:
    """Before a request opens its room: one that ended under the same number is history."""
    here.forget(bootstrap_room)
    succeeded.forget(bootstrap_room)
    opened.add(bootstrap_room)


def before_send(sender: Untyped, *_: object, **__: object) -> None:
    """Before a chunk is queued: remember which decodes it goes to, which a worker forgets once the last one is sent."""
    if not hasattr(sender, "dsv4_targets"):
        sender.dsv4_targets = sender.kv_mgr._room_notify_targets(sender.bootstrap_room)


def end_room(sender: Untyped, reason: str) -> None:
    """Fail a sender's room, for this reason, and tell its decodes.

    Among several ranks one may have finished its part, which is no success of the request: it is taken back, and the
    poll that follows looks again.
    """
    manager, room = sender.kv_mgr, sender.bootstrap_room
    targets = manager._room_notify_targets(room) or getattr(sender, "dsv4_targets", [])
    manager.conclude_failure(bootstrap_room=room, failure_reason=reason, targets=targets)
    take_back(sender)


def send_within(socket: Untyped, *_: Untyped, **__: Untyped) -> None:
    """After prefill looked up its socket to a decode: a message to one that has just died holds nobody up for long.

    SGLang lets it take 30 s, and it is the scheduler's own thread that tells decode of an abort.
    """
    import zmq

    socket.setsockopt(zmq.SNDTIMEO, SEND_WITHIN_MS)


def take_back(poller: Untyped) -> None:
    """Whatever this rank had made of a sender's or receiver's room, it has failed. No ordinary update may do that."""
    from serving.transfer.statuses import FAILED

    room, statuses = poller.bootstrap_room, poller.kv_mgr.request_status
    if hasattr(statuses, "take_back"):
        statuses.take_back(room)
    elif room in statuses:
        statuses[room] = FAILED
    poller.conclude_state = None


def let_stand(sender: Untyped) -> None:
    """The success of a sender's room stands, also if it was taken back here since all had agreed on it."""
    from sglang.srt.disaggregation.base import KVPoll

    if sender.conclude_state == KVPoll.Success:
        return
    sender.conclude_state = KVPoll.Success
    if hasattr(sender, "_transfer_metric"):
        manager = sender.kv_mgr
        with manager.failure_lock:
            manager.failure_records.pop(sender.bootstrap_room, None)


def abort(original: Untyped, sender: Untyped) -> None:
    """Around the abort of a request on prefill: SGLang marks it here alone, and decode would wait for its own timer."""
    if sender.conclude_state is None:
        end_room(sender, "Aborted by AbortReq.")
    original(sender)


def before_clear(sender: Untyped) -> None:
    """Before a room is closed: remember one that failed, and let no worker start on it.

    SGLang drops the room's status first and its targets afterwards; a worker that looks in between sees no failure and
    finds where to send. Without targets it sends nothing.
    """
    from sglang.srt.disaggregation.base import KVPoll

    manager, room = sender.kv_mgr, sender.bootstrap_room
    opened.discard(room)
    status = manager.request_status.get(room)
    if status != KVPoll.Success:
        manager.transfer_infos.pop(room, None)
    if status == KVPoll.Failed or sender.conclude_state == KVPoll.Failed:
        with manager.failure_lock:
            reason = manager.failure_records.get(room)
        here.add(room, reason or UNKNOWN_REASON, time.monotonic())
    elif status == KVPoll.Success:
        succeeded.add(room, "", time.monotonic())


def control_message(original: Untyped, manager: Untyped, msg: list[bytes]) -> bool:
    """Around prefill's look at a message of decode: a handshake for a room that ended gets its answer, and no room.

    One that is repeated for a room that ended well gets none: its answer is on the way.
    """
    from sglang.srt.disaggregation.base import KVPoll

    frames = msg[1:] if msg and msg[0] == NIXL_GUARD else msg
    if len(frames) > 3 and frames[0].isdigit():
        room = int(frames[0])
        if frames[-1] == AGAIN and succeeded.reason(room) is not None:
            return True
        reason = here.reason(room)
        if reason is not None:
            manager.send_kv_status_message(
                targets=[(frames[1].decode("ascii"), int(frames[2]))],
                bootstrap_room=room,
                status=KVPoll.Failed,
                failure_reason=reason,
            )
            return True
    return bool(original(manager, msg))


def status_message(
    parts: list[bytes], manager: Untyped, *, bootstrap_room: int, status: object, failure_reason: str | None
) -> list[bytes]:
    """After a status for decode was put into frames: the reason goes with it over Mooncake too, which decode reads."""
    if failure_reason and not manager.kv_status_msg_carries_reason and manager.kv_status_msg_tag is None:
        return [*parts, failure_reason.encode("utf-8")]
    return parts
