"""Decode notices a prefill worker that was restarted between two heartbeats."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="lost-prefill",
    defect=(
        "a prefill that is restarted between two heartbeats answers the next one: decode keeps the ports of the one "
        "before and every request hangs until its timer; what it keeps back for the dead one is kept for ever"
    ),
    safe_because=(
        "a worker is gone only once its kernel has closed the connection that is kept to it and refused two more; what "
        "follows is what SGLang does after missed heartbeats"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang's decode tells one prefill from another at the same address",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.decode.DecodePreallocQueue._init_kv_manager",
            "after",
            "serving.peers.prefill:start",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.disaggregation.decode", "DecodePreallocQueue._init_kv_manager", ("7edcd5223df2",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager._handle_node_failure", ("ab06c12c152a",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn",
            "CommonKVManager._start_heartbeat_checker_thread",
            ("02ebd94b4fef",),
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVReceiver._setup_bootstrap_infos", ("e3f6791bae68",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVReceiver._connect_to_bootstrap_server", ("ea9370115628",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "AbortNotification", ("144f59e28a2c",)),
    ),
)
