"""The poll of all transfers, with one look at those that go on."""

import os

from serving.transfer.statuses import TRANSFERRING
from serving.untyped import Untyped


def poll_all(original: Untyped, pollers: list[Untyped]) -> list[int]:
    """Around the engine's poll of all its transfers: one that goes on says so by its room's status, looked up once.

    SGLang asks each sender, which looks it up twice, and `in` takes half as long again in a map with rules as in a
    dict: with 512 requests 7 % of a pass. For this status a sender does nothing else.
    """
    from sglang.srt.disaggregation.common.conn import CommonKVSender

    kind = type(pollers[0]) if pollers else None
    if getattr(kind, "poll", None) is not CommonKVSender.poll or "SGLANG_TEST_DISAGG_FAILURE_PROB" in os.environ:
        return list(original(pollers))
    return [
        TRANSFERRING
        if type(poller) is kind
        and poller.conclude_state is None
        and poller.kv_mgr.request_status.get(poller.bootstrap_room) == TRANSFERRING
        else int(poller.poll())
        for poller in pollers
    ]
