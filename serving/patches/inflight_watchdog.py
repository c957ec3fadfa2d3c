"""No request stays in prefill's inflight queue longer than the timeout."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="inflight-watchdog",
    defect=(
        "a request whose KV transfer does not end stays in prefill's inflight queue for ever: no clock runs in "
        "WaitingForInput or Transferring, the request is polled and appended again, and neither its client nor "
        "its decode is told"
    ),
    safe_because=(
        "a request is failed through the engine's own way of failing a room, before the poll whose reduction "
        "carries it to all ranks; Failed is terminal on 0.5.23, and a rank that has finished its part is left "
        "to the others"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang bounds WaitingForInput and Transferring on prefill and tells decode",
    hooks=(
        Hook("sglang.srt.managers.scheduler.Scheduler.init_disaggregation", "after", "serving.inflight.queue:begin"),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_batch_result_disagg_prefill",
            "around",
            "serving.inflight.queue:prefill_done",
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            "around",
            "serving.inflight.queue:inflight_pass",
        ),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.handle_inflight_transfer_failure",
            "around",
            "serving.inflight.queue:transfer_failed",
        ),
        Hook(
            "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin._pp_pd_get_prefill_transferred_ids",
            "before",
            "serving.inflight.queue:before_stage_poll",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVSender.send",
            "before",
            "serving.inflight.strata:before_send",
        ),
        Hook("sglang.srt.disaggregation.utils.prepare_abort", "around", "serving.inflight.queue:prepare_abort"),
        Hook(
            "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController._update_handlers",
            "after",
            "serving.inflight.queue:update_handlers",
        ),
        Hook(
            "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
            "after",
            "serving.inflight.queue:internal_state",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_disaggregation", ("88f98aaec97d",)),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.process_batch_result_disagg_prefill",
            ("1bb4ba48ad33",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            ("07bd58ad302c",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.handle_inflight_transfer_failure",
            ("a0383c4663b1",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.event_loop_normal_disagg_prefill",
            ("c1e182f122b0",),
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.event_loop_overlap_disagg_prefill",
            ("96f822e255f0",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin", "SchedulerPPMixin.event_loop_pp_disagg_prefill", ("d9359ac9fa29",)
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin._pp_pd_get_prefill_transferred_ids",
            ("25fb7834d459",),
        ),
        Upstream("sglang.srt.disaggregation.utils", "prepare_abort", ("d28693bbb0d4",)),
        Upstream("sglang.srt.disaggregation.utils", "poll_and_all_reduce_attn_cp_tp_group", ("f79beede9780",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.update_status", ("86bf72997247",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_transfer", ("e051408f69ea",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.apply_prefill_status", ("4bb2dea1ec5f",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender._poll_with_status", ("588ddaa04a5e",)),
        Upstream(
            "sglang.srt.managers.scheduler_components.internal_state",
            "SchedulerInternalStateController.set_internal_state",
            ("a8e7710dfcb1",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_components.internal_state",
            "SchedulerInternalStateController._update_handlers",
            ("e758268cd2e3",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_components.internal_state",
            "SchedulerInternalStateController.get_internal_state",
            ("1e054f6d1303",),
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.__init__", ("e4979202948a",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.send", ("2c7d8f6805df",)),
        Upstream("sglang.srt.disaggregation.prefill", "PrefillBootstrapQueue._num_pages_to_send", ("98aaa3c47ba4",)),
        Upstream("sglang.srt.disaggregation.prefill", "PrefillBootstrapQueue._init_kv_manager", ("51083c2e7cf2",)),
        Upstream("sglang.srt.disaggregation.prefill", "PrefillBootstrapQueue.finalize_bootstrap", ("e1ecf42a3ea5",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._add_remote_peer", ("e235a6badc2a",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._reload_invalidated_peers", ("fc856e5912c1",)),
        Upstream(
            "sglang.srt.disaggregation.mooncake.conn",
            "MooncakeKVManager._publish_peer_registration",
            ("bfe10924a2aa",),
        ),
        Upstream("sglang.srt.disaggregation.nixl.conn", "TransferInfo", ("4fd84b4a79df",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "KVArgsRegisterInfo", ("ff04d25583d4",)),
        Upstream("sglang.srt.disaggregation.mooncake.conn", "TransferInfo", ("dbd2fb297316",)),
        Upstream("sglang.srt.disaggregation.mooncake.conn", "KVArgsRegisterInfo", ("76260434ecf4",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.get_transfer_metric", ("072dc5cb81bb",)),
        Upstream("sglang.srt.disaggregation.utils", "DisaggregationMode", ("b76725977066",)),
        Upstream("sglang.srt.managers.schedule_batch", "FINISH_ABORT", ("834d29ee1ae4",)),
        Upstream("sglang.srt.runtime_context", "get_parallel", ("fd933d99d3bc",)),
        Upstream("sglang.srt.disaggregation.pp_consensus_store", "PPConsensusStore", ("c160fb6b2ce3",)),
        Upstream("sglang.srt.managers.scheduler_components.internal_state", "UpdateRejected", ("47355f5ac1b5",)),
        Upstream("sglang.srt.managers.scheduler_components.internal_state", "_UpdateHandler", ("527de197599b",)),
        Upstream("sglang.srt.mem_cache.allocator.base", "BaseTokenToKVPoolAllocator.available_size", ("f3654ae60744",)),
        Upstream("sglang.srt.mem_cache.base_prefix_cache", "BasePrefixCache.evictable_size", ("9528473e307f",)),
        Upstream("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool.available_size", ("0c1c00f77314",)),
        Upstream("sglang.srt.disaggregation.utils", "ReqToMetadataIdxAllocator", ("041c16d71d70",)),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.publish_load_snapshot", ("17c827f44cdb",)),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.init_metrics_collector", ("aa57d860af4c",)),
        Upstream("sglang.srt.observability.metrics_collector", "SchedulerMetricsCollectorContext", ("ea3cfc064f9a",)),
    ),
    relies_on=("decode-is-told", "settled-pages"),
)
