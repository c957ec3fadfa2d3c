"""The client hears why its transfer failed, whichever rank of decode was told."""

from serving.patches.patch import Hook, Patch, Upstream

_DECODE = "sglang.srt.disaggregation.decode"

PATCH = Patch(
    name="reason-of-any-rank",
    defect=(
        "decode's ranks agree that a transfer failed, but not why: the first rank answers the client, and where "
        "another was told sooner, with tensor parallelism, the answer and the log of the first say that the reason is "
        "unknown"
    ),
    safe_because=(
        "the ranks exchange their reasons right after they have agreed on the same failures, and only then, so that "
        "none waits for another; a reason that a rank has is kept, and what fails is decided as before"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang's ranks share the reason of a failure",
    hooks=(
        Hook(f"{_DECODE}.poll_and_all_reduce", "around", "serving.transfer.reasons:poll"),
        Hook(
            f"{_DECODE}.DecodeTransferQueue._poll_with_staging",
            "after",
            "serving.transfer.reasons:staged",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.disaggregation.utils", "poll_and_all_reduce", ("7c914f1f5841",)),
        Upstream(_DECODE, "DecodePreallocQueue._update_handshake_waiters", ("717bcd0fcf6f",)),
        Upstream(_DECODE, "DecodeTransferQueue._poll_with_metadata_gate", ("c2fd805cd16c",)),
        Upstream(_DECODE, "DecodeTransferQueue._poll_with_staging", ("41bb3d9672bf",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVReceiver.failure_exception", ("98a7021048ba",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
    ),
    required=False,
)
