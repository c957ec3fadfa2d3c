"""Pipeline stages agree on what failed, and on what has settled; SGLang makes them agree on what has ended alone.

Each stage of a pipeline schedules for itself and must decide like the others. For the end of a transfer they pass a
list of request ids along, each keeping what has ended on it too, with success or failure alike. A request that failed
on one stage and succeeded on another then leaves the one and runs on the other, and the pipeline waits for itself for
ever; on decode the later stages do not even hear of a failure. So two kinds of marks travel in the same lists: that a
request failed on some stage, which makes it fail on all; and that a stage needs its pages no more, which every stage
must have said before any frees them.
"""

from collections.abc import Iterable
from typing import Final

from serving.inflight import told
from serving.untyped import Untyped

FAILED: Final = "dsv4-failed:"
"""Before the id of a request that failed on a stage: one stage's word is enough."""

SETTLED: Final = "dsv4-settled:"
"""Before the room of a request whose transfer is over on a stage: it takes every stage's word.

Not its id: a client may send a request that failed again under the same one, while the first is still being written.
"""

ELSEWHERE: Final = "its KV transfer failed on another pipeline stage"


def is_pipeline(scheduler: Untyped) -> bool:
    """Whether the engine has more than one stage."""
    return bool(scheduler.pp_group.world_size > 1)


def passed_on(
    before: list[str] | None, ended: Iterable[str], failed: Iterable[str], settled: Iterable[int]
) -> list[str]:
    """The list that a stage passes on. `before` is the list of the stage before it, None on the first stage."""
    here = {*ended, *(f"{SETTLED}{room}" for room in settled)}
    marks = {FAILED + rid for rid in failed}
    if before is None:
        return [*sorted(here), *sorted(marks)]
    marks |= {name for name in before if name.startswith(FAILED)}
    return [*(name for name in before if name in here), *sorted(marks)]


def failed_among(agreed: Iterable[str]) -> set[str]:
    """The ids that have ended on all stages and failed on at least one."""
    names = set(agreed)
    return {rid for name in names if name.startswith(FAILED) and (rid := name.removeprefix(FAILED)) in names}


def settled_among(agreed: Iterable[str]) -> set[int]:
    """The rooms whose transfers are over on all stages."""
    return {int(name.removeprefix(SETTLED)) for name in agreed if name.startswith(SETTLED)}


def prefill_list(scheduler: Untyped) -> list[str]:
    """In place of a prefill stage's list of what has ended on it."""
    from serving.inflight import settle

    before = None if scheduler.pp_group.is_first_rank else scheduler._pp_recv_pyobj_from_prev_stage()
    return passed_on(
        before, *_ended(scheduler, scheduler.disagg_prefill_inflight_queue, is_send=True), settle.settled_rooms()
    )


def decode_list(scheduler: Untyped) -> list[str]:
    """In place of a decode stage's list of what has ended on it."""
    from serving.inflight import quarantine

    queue = scheduler.disagg_decode_transfer_queue
    before = None if scheduler.pp_group.is_first_rank else scheduler._pp_recv_pyobj_from_prev_stage()
    return passed_on(before, *_ended(scheduler, queue.queue, is_send=False), quarantine.drained_rooms(queue))


def _ended(scheduler: Untyped, queue: Untyped, *, is_send: bool) -> tuple[list[str], list[str]]:
    from sglang.srt.disaggregation.base import KVPoll

    ended, failed = scheduler.get_rids(queue, is_send, [KVPoll.Success, KVPoll.Failed], [KVPoll.Failed])
    return ended, failed


def before_prefill_pass(scheduler: Untyped, rids_to_check: list[str] | None = None) -> None:
    """What all prefill stages agreed on came back: what failed on one of them fails here too, and a success stands.

    The list is older than what this stage has done since. A watchdog or an abort that ended a request meanwhile is too
    late: the other stages let it go as a success, and would never say that its pages have settled.
    """
    if not rids_to_check:
        return
    from sglang.srt.disaggregation.base import KVPoll

    ended, failed = set(rids_to_check), failed_among(rids_to_check)
    for request in scheduler.disagg_prefill_inflight_queue:
        sender = request.disagg_kv_sender
        if request.rid in failed:
            if sender.poll() != KVPoll.Failed:
                told.end_room(sender, ELSEWHERE)
        elif request.rid in ended:
            told.let_stand(sender)


def decode_pass(original: Untyped, scheduler: Untyped, release_rids: list[str] | None) -> list[str] | None:
    """Around what a decode stage does with the list that all agreed on; returned is what the next stage gets of it.

    SGLang returns the requests that go on to run, and the next stage never hears of the others.
    """
    from serving.inflight import quarantine

    if release_rids is None:
        original(scheduler, None)
        return None
    queue = scheduler.disagg_decode_transfer_queue
    quarantine.here.agreed |= settled_among(release_rids)
    for rid in failed_among(release_rids):
        for request in queue.queue:
            if request.req.rid == rid:
                _fail_receiver(request.kv_receiver)
    before = {request.req.rid for request in queue.queue}
    original(scheduler, release_rids)
    after = {request.req.rid for request in queue.queue}
    return [name for name in release_rids if name not in before or name not in after]


def _fail_receiver(receiver: Untyped) -> None:
    from sglang.srt.disaggregation.base import KVPoll

    if receiver.poll() != KVPoll.Failed:
        manager, room = receiver.kv_mgr, receiver.bootstrap_room
        with manager.failure_lock:
            manager.failure_records.setdefault(room, ELSEWHERE)
        told.take_back(receiver)
