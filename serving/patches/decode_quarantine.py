"""Decode frees the pages of a failed request only when nothing can write into them any more."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="decode-quarantine",
    defect=(
        "decode frees the pages of a failed request after 30 s also when prefill has not said that its "
        "transfer is over; a transfer that stalled for longer then lands in another request's pages, whose "
        "answer is a 200"
    ),
    safe_because=(
        "a deadline is moved on, in the engine's own list, as long as the prefill behind it lives; the "
        "acknowledgement, the agreement of the ranks and the release are the engine's"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang's deferred release has no timeout while prefill lives",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.decode.DecodeTransferQueue.resolve_deferred_releases",
            "around",
            "serving.inflight.quarantine:resolve",
        ),
    ),
    upstream=(
        Upstream(
            "sglang.srt.disaggregation.decode", "DecodeTransferQueue.resolve_deferred_releases", ("15034a265304",)
        ),
        Upstream("sglang.srt.disaggregation.decode", "DecodeTransferQueue._defer_release", ("e0ba8d28c8b8",)),
        Upstream("sglang.srt.disaggregation.decode", "DecodeTransferQueue.pop_transferred", ("27f5dd274eca",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager._handle_node_failure", ("ab06c12c152a",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVManager._maybe_ack_drained_abort", ("5ddb7c509bc4",)
        ),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVReceiver._send_abort_notification", ("ae107a75b6e3",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.is_abort_release_safe", ("df642b607edc",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVReceiver.__init__", ("392d6c36cb14",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVReceiver._connect_to_bootstrap_server", ("ea9370115628",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "AbortNotification", ("144f59e28a2c",)),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_metrics_collector", ("aa57d860af4c",)),
        Upstream("sglang.srt.observability.metrics_collector", "SchedulerMetricsCollectorContext", ("ea3cfc064f9a",)),
    ),
    # The latter only in a pipeline, of which nobody knows yet when patches are judged: see settled-pages.
    relies_on=("lost-prefill", "pipeline-failure"),
)
