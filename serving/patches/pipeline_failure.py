"""The stages of a pipeline agree on which transfers failed."""

from serving.patches.patch import Hook, Patch, Upstream

_STAGE = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin"

PATCH = Patch(
    name="pipeline-failure",
    defect=(
        "a transfer that failed on one pipeline stage and succeeded on another leaves the one and runs on the other, "
        "and the pipeline waits for itself for ever; later decode stages never hear of a failed transfer and keep it"
    ),
    safe_because=(
        "what all stages agree on is computed as before; added are names that begin with dsv4-, which no request has, "
        "and a failure is put into force by the engine's own status before the stage acts on the list"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang's pipeline stages agree on the outcome of a transfer and not only on its end",
    hooks=(
        Hook(f"{_STAGE}._pp_pd_get_prefill_transferred_ids", "replace", "serving.inflight.pipeline:prefill_list"),
        Hook(f"{_STAGE}._pp_pd_get_decode_transferred_ids", "replace", "serving.inflight.pipeline:decode_list"),
        Hook(f"{_STAGE}.process_decode_transfer_queue", "around", "serving.inflight.pipeline:decode_pass"),
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            "before",
            "serving.inflight.pipeline:before_prefill_pass",
        ),
    ),
    upstream=(
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin._pp_pd_get_prefill_transferred_ids",
            ("25fb7834d459",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin._pp_pd_get_decode_transferred_ids",
            ("16512ee8e72e",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin._pp_pd_send_consensus_release_ids",
            ("7d6a0d332cbc",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin.process_decode_transfer_queue",
            ("a9122c9cbab9",),
        ),
        Upstream("sglang.srt.managers.scheduler_pp_mixin", "SchedulerPPMixin.get_rids", ("3a4e094def0e",)),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin", "SchedulerPPMixin.event_loop_pp_disagg_prefill", ("d9359ac9fa29",)
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin", "SchedulerPPMixin.event_loop_pp_disagg_decode", ("e6c2e9ec7809",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVReceiver._poll", ("c7b9dfeb4b34",)),
        Upstream(
            "sglang.srt.disaggregation.prefill",
            "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
            ("07bd58ad302c",),
        ),
        Upstream(
            "sglang.srt.managers.scheduler_pp_mixin",
            "SchedulerPPMixin._pp_recv_pyobj_from_prev_stage",
            ("2282585095c0",),
        ),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_failure", ("341fd988d2e7",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_transfer", ("e051408f69ea",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.record_failure", ("c882f96eeec7",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager._room_notify_targets", ("c38e68e707d8",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.__init__", ("81e4081d5377",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.poll", ("9747a9a9131a",)),
        Upstream("sglang.srt.disaggregation.utils", "all_reduce_flags", ("165f0d70c1f1",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.is_abort_release_safe", ("df642b607edc",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVReceiver._connect_to_bootstrap_server", ("ea9370115628",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "AbortNotification", ("144f59e28a2c",)),
    ),
)
