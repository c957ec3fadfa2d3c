"""Why a transfer failed, among the ranks that fail it together.

Ranks of tensor parallelism agree on failures by a minimum of numbers. The first rank answers the client, and where it
was another that had been told of the failure, the answer would be that the reason is unknown.
"""

from collections.abc import Sequence

from serving.transfer.statuses import FAILED
from serving.untyped import Untyped


def poll(
    original: Untyped,
    pollers: list[Untyped],
    gloo_group: Untyped,
    decode_reqs: list[Untyped] | None = None,
    metadata_buffers: Untyped | None = None,
) -> list[int]:
    """Around decode's poll of its handshakes and transfers; SGLang has prefill poll its senders by it as well."""
    polls: list[int] = original(pollers, gloo_group, decode_reqs, metadata_buffers)
    if FAILED in polls:
        share(pollers if decode_reqs is None else _receivers(decode_reqs), polls, gloo_group)
    return polls


def staged(polls: list[int], queue: Untyped) -> None:
    """After decode's poll of transfers that go through a staging buffer."""
    if FAILED in polls:
        share(_receivers(queue.queue), polls, queue.gloo_group)


def share(receivers: Sequence[Untyped], polls: Sequence[int], group: Untyped) -> None:
    """Where all ranks of this group agreed on a failure, let the first know the reason if any knows it.

    All ranks come here with the same failures, since that is what they agreed on, so that none waits for another. The
    others stay without a reason: SGLang leaves a failure without one out of the log.
    """
    import torch.distributed as dist
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    failed = [
        receiver
        for receiver, poll in zip(receivers, polls, strict=True)
        # A health check's receiver is a fake without a room.
        if poll == FAILED and isinstance(receiver, CommonKVReceiver)
    ]
    ranks = dist.get_world_size(group)
    if not failed or ranks == 1:
        return
    known: list[list[str | None]] = [[] for _ in range(ranks)]
    dist.all_gather_object(known, [_reason(receiver) for receiver in failed], group=group)
    if dist.get_rank(group) != 0:
        return
    for receiver, reasons in zip(failed, zip(*known, strict=True), strict=True):
        reason = next(filter(None, reasons), None)
        if reason is not None:
            with receiver.kv_mgr.failure_lock:
                receiver.kv_mgr.failure_records.setdefault(receiver.bootstrap_room, reason)


def _receivers(decode_reqs: Sequence[Untyped]) -> list[Untyped]:
    return [request.kv_receiver for request in decode_reqs]


def _reason(receiver: Untyped) -> str | None:
    manager = receiver.kv_mgr
    with manager.failure_lock:
        reason: str | None = manager.failure_records.get(receiver.bootstrap_room)
    return reason
