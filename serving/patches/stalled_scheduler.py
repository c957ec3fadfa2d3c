"""A request whose scheduler does not move any more is answered, and not left waiting for it for ever."""

from serving.patches.patch import Hook, Patch, Upstream

_TOKENIZER = "sglang.srt.managers.tokenizer_manager"
_SCHEDULER = "sglang.srt.managers.scheduler"
_COMMON = "sglang.srt.disaggregation.common.conn"
_LOADS = "sglang.srt.managers.load_snapshot"

PATCH = Patch(
    name="stalled-scheduler",
    defect=(
        "the HTTP process of an engine waits for its scheduler for ever: when that is stopped or hangs, its health "
        "check fails and its requests are never answered, and the other half of a request, for which "
        "the router waits as well, stays up to 300 s more"
    ),
    safe_because=(
        "it acts only while what the scheduler publishes every second at most has not changed for the limit, as seen "
        "by a process that was running itself; a request is ended the way the scheduler's own abort ends it, and that "
        "abort is queued for the scheduler, should it go on; the other half learns of it by the messages that SGLang "
        "itself uses, an ABORT to prefill and a bad heartbeat to decode"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="the tokenizer manager ends requests whose scheduler does not answer",
    hooks=(
        Hook(f"{_TOKENIZER}.TokenizerManager.init_running_status", "after", "serving.stall.watch:prepare"),
        Hook(f"{_TOKENIZER}.TokenizerManager.auto_create_handle_loop", "after", "serving.stall.watch:begin"),
        Hook(f"{_SCHEDULER}.Scheduler.ingest_requests", "after", "serving.stall.watch:show_movement"),
        Hook(
            f"{_COMMON}.CommonKVBootstrapServer._setup_routes",
            "before",
            "serving.stall.other_half:answer_for_scheduler",
        ),
    ),
    upstream=(
        Upstream(_TOKENIZER, "TokenizerManager.init_running_status", ("b3746d6df611",)),
        Upstream(_TOKENIZER, "TokenizerManager.auto_create_handle_loop", ("22397e5af7a8",)),
        Upstream(_TOKENIZER, "TokenizerManager.abort_request", ("b11f8e8cdd5b",)),
        Upstream(_TOKENIZER, "TokenizerManager._handle_abort_req", ("1f32dd8112b8",)),
        Upstream(_TOKENIZER, "TokenizerManager._handle_abort_finish_reason", ("de208fa88d80",)),
        Upstream(_SCHEDULER, "Scheduler.ingest_requests", ("5c1dbbe27f19",)),
        Upstream(_SCHEDULER, "Scheduler.publish_load_snapshot", ("17c827f44cdb",)),
        Upstream(_LOADS, "ShmLoadSnapshotWriter", ("7b01354ce926",)),
        Upstream(_LOADS, "slot_offset", ("4735b0f0ee0f",)),
        Upstream(_COMMON, "CommonKVBootstrapServer._setup_routes", ("70c477fa193b",)),
        Upstream(_COMMON, "CommonKVBootstrapServer._handle_health_check", ("53ae24c3dc81",)),
        Upstream(_COMMON, "CommonKVBootstrapServer._handle_route_get", ("2c0959eb966b",)),
        Upstream(_COMMON, "CommonKVManager._start_heartbeat_checker_thread", ("02ebd94b4fef",)),
        Upstream(_COMMON, "AbortNotification", ("144f59e28a2c",)),
        Upstream(_LOADS, "ShmLoadSnapshotReader", ("69af7aac98e0",)),
        Upstream(_TOKENIZER, "ReqState", ("94a193403469",)),
        Upstream("sglang.srt.managers.io_struct", "AbortReq", ("b75ede2ab89c",)),
        Upstream("sglang.srt.utils.network", "NetworkAddress", ("504dfc106ec2",)),
    ),
    # Without it a fault takes longer to show at the client; everything else is as it was.
    required=False,
)
