"""Prefill keeps the pages of a request that ended badly until its transfer is over."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="settled-pages",
    defect=(
        "the pages of a failed or aborted request are freed while a transfer worker may still be sending them: "
        "the next request writes into them, and what arrives is another request's context; and the room of an "
        "aborted request is never closed"
    ),
    safe_because=(
        "only the moment of the release changes, by the same functions in the same order on all ranks, which "
        "agree on it; a request that succeeded is released as before"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang keeps the source pages of a failed transfer until its worker has let go",
    hooks=(
        Hook("sglang.srt.managers.scheduler.Scheduler.init_disaggregation", "after", "serving.inflight.settle:begin"),
        Hook("sglang.srt.mem_cache.common.release_kv_cache", "around", "serving.inflight.settle:release_kv_cache"),
        Hook(
            "sglang.srt.disaggregation.prefill.maybe_release_metadata_buffer",
            "around",
            "serving.inflight.settle:release_metadata_buffer",
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.pop_bootstrapped",
            "after",
            "serving.inflight.settle:after_bootstrap_pass",
        ),
        Hook(
            "sglang.srt.managers.scheduler.Scheduler.is_fully_idle", "around", "serving.inflight.settle:is_fully_idle"
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            "before",
            "serving.inflight.settle:before_inflight_pass",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.mem_cache.common", "release_kv_cache", ("c9a65464aa6c",)),
        Upstream("sglang.srt.disaggregation.prefill", "maybe_release_metadata_buffer", ("49e85c9f0bf9",)),
        Upstream("sglang.srt.disaggregation.prefill", "PrefillBootstrapQueue.pop_bootstrapped", ("42625605cfe8",)),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.release_aborted_prefill_waiting_req",
            ("48a4d0d1f1ad",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin._retire_aborted_prefill_result",
            ("d25dffc57761",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.handle_inflight_transfer_failure",
            ("a0383c4663b1",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.handle_bootstrap_failure",
            ("81997898010e",),
        ),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.is_fully_idle", ("7a9bf4f94c7c",)),
        Upstream("sglang.srt.disaggregation.utils", "all_reduce_flags", ("165f0d70c1f1",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager.transfer_worker", ("cc3cd6b8e40c",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._await_handles", ("1574d48c797b",)),
        Upstream("sglang.srt.disaggregation.mooncake.conn", "MooncakeKVManager.transfer_worker", ("7839792ad73b",)),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_disaggregation", ("88f98aaec97d",)),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            ("07bd58ad302c",),
        ),
        Upstream("sglang.srt.managers.schedule_batch", "ReqKvInfo", ("6373f0d70037",)),
        Upstream("sglang.srt.disaggregation.utils", "ReqToMetadataIdxAllocator", ("041c16d71d70",)),
        Upstream("sglang.srt.disaggregation.utils", "DisaggregationMode", ("b76725977066",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.__init__", ("81e4081d5377",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.clear", ("5b7d591f8809",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVManager.poison_deferred_ack_room", ("5cd119f010c2",)
        ),
    ),
    # Only in a pipeline, and whether there is one is not known yet when patches are judged: its stages keep the pages
    # of whatever failed until all have said that they need them no more, which is said by that patch alone.
    relies_on=("pipeline-failure",),
)
