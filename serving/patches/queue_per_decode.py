"""A decode worker that is frozen delays no other decode worker's KV."""

from serving.patches.patch import Hook, Patch, Upstream

_NIXL = "sglang.srt.disaggregation.nixl.conn"

PATCH = Patch(
    name="queue-per-decode",
    defect=(
        "decode workers share prefill's transfer queues, and a worker waits for its writes without a limit: while one "
        "decode is frozen, every request for another one on the same queue stays in waiting_for_input until the "
        "watchdog ends it"
    ),
    safe_because=(
        "a room's chunks still go through one queue in their order, and all rooms of one decode through the same; "
        "a decode that prefill has not known gets the next queue, and a worker more once all are taken. Not with "
        "staging buffers, which belong to a fixed number of workers"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="NIXL's transfer worker does not wait for one room while it has others",
    hooks=(
        Hook(f"{_NIXL}.NixlKVManager.add_transfer_request", "around", "serving.transfer.queues:add_transfer_request"),
    ),
    upstream=(
        Upstream(_NIXL, "NixlKVManager.add_transfer_request", ("ebba182a79e9",)),
        Upstream(_NIXL, "NixlKVManager.transfer_worker", ("cc3cd6b8e40c",)),
        Upstream(_NIXL, "NixlKVManager.__init__", ("e8fd7f256acb",)),
        Upstream("sglang.srt.disaggregation.common.utils", "FastQueue", ("9fd5674dce09",)),
    ),
    required=False,
)
