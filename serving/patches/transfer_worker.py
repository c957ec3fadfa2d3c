"""A chunk that Mooncake cannot send fails one request, not all that come after it."""

from serving.patches.patch import Hook, Patch, Upstream

_MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"

PATCH = Patch(
    name="transfer-worker",
    defect=(
        "an exception ends a Mooncake transfer worker for good, and with it every later request of the decode ranks "
        "that its queue serves: a decode session that prefill does not know (one of the two was restarted), or a "
        "room that is cleared between two looks at it. Prefill goes on taking requests, none of which is transferred"
    ),
    safe_because=(
        "the worker's loop is SGLang's own and keeps nothing between two chunks. Writes of the chunk that have not "
        "begun are called off and the others are waited for, 5 s at most, before its room fails; if one is still "
        "under way, decode is not told and its pages stay its own until its own time limit"
    ),
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="MooncakeKVManager.transfer_worker fails the room and goes on, as NIXL's does",
    hooks=(Hook(f"{_MOONCAKE}.MooncakeKVManager.transfer_worker", "around", "serving.transfer.worker:work"),),
    upstream=(
        Upstream(
            _MOONCAKE,
            "MooncakeKVManager.transfer_worker",
            (
                "3863db7a9a8e",
                "363a54420229",
                "5d6df5bdfbf5",
                "735dbe6af605",
                "6cdfbc2b0507",
                "99814015d5af",
                "1c6c7f4f0e71",
                "0013238c19e5",
                "7839792ad73b",
            ),
        ),
        Upstream(
            "sglang.srt.disaggregation.common.conn",
            "CommonKVManager.conclude_failure",
            ("341fd988d2e7",),
            versions=">=0.5.20",
        ),
        Upstream(
            _MOONCAKE,
            "MooncakeKVManager.sync_status_to_decode_endpoint",
            ("ee2d4d049830", "b380b3b62e27"),
            versions="<0.5.20",
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.record_failure", ("c882f96eeec7",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn",
            "CommonKVManager.update_status",
            ("3a14b450f48f", "c03148d8a791", "86bf72997247"),
        ),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
    ),
)
