"""A step of the wall clock does not end or keep the requests that wait for a transfer."""

from serving.patches.patch import Hook, Patch, Upstream

_COMMON = "sglang.srt.disaggregation.common.conn"

PATCH = Patch(
    name="monotonic-timers",
    defect=(
        "how long prefill waits to be asked and decode waits for its KV is counted on the wall clock: a step of two "
        "hours ahead failed every waiting request at once, and one back makes five minutes last for hours"
    ),
    safe_because="the start of a wait is moved with the wall clock, and SGLang's own comparison decides",
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang counts these two waits on the monotonic clock",
    hooks=(
        Hook(
            f"{_COMMON}.CommonKVSender._check_bootstrap_timeout", "around", "serving.transfer.timers:waited_for_decode"
        ),
        Hook(
            f"{_COMMON}.CommonKVReceiver._check_waiting_timeout", "around", "serving.transfer.timers:waited_for_prefill"
        ),
    ),
    upstream=(
        Upstream(_COMMON, "CommonKVSender._check_bootstrap_timeout", ("942c7a28f450",)),
        Upstream(_COMMON, "CommonKVReceiver._check_waiting_timeout", ("9606d7e49194",)),
        Upstream(_COMMON, "CommonKVReceiver._poll", ("c7b9dfeb4b34",)),
        Upstream(_COMMON, "CommonKVSender._poll_with_status", ("588ddaa04a5e",)),
    ),
    required=False,
)
