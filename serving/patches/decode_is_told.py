"""Decode learns at once of a request that prefill has ended."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="decode-is-told",
    defect=(
        "an abort on prefill is not passed on, and a decode that asks for a room after its end opens it again "
        "for nobody: either way decode waits out its own 300 s; over Mooncake it is told without a reason"
    ),
    safe_because=(
        "it is told through the engine's own status message, which is sticky on decode; a room that a new "
        "request opens is no longer remembered"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang notifies decode of aborts and answers late handshakes",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager._connect",
            "after",
            "serving.inflight.told:send_within",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVSender.__init__",
            "before",
            "serving.inflight.told:before_opening",
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVSender.send", "before", "serving.inflight.told:before_send"
        ),
        Hook("sglang.srt.disaggregation.common.conn.CommonKVSender.abort", "around", "serving.inflight.told:abort"),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVSender.clear", "before", "serving.inflight.told:before_clear"
        ),
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager._encode_kv_status_message",
            "after",
            "serving.inflight.told:status_message",
        ),
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager._handle_abort_notification",
            "around",
            "serving.inflight.told:control_message",
        ),
        Hook(
            "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager._handle_abort_notification",
            "around",
            "serving.inflight.told:control_message",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager._connect", ("d52bb4c852f5",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.__init__", ("81e4081d5377",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.send", ("2c7d8f6805df",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.abort", ("e4b4f9d4cf30",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVSender.clear", ("5b7d591f8809",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVManager._encode_kv_status_message", ("af1d16a2ea8d",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.parse_kv_status_message", ("205ebafc8ab4",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.send_kv_status_message", ("45d527037087",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._handle_abort_notification", ("f65bd384cf39",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._start_bootstrap_thread", ("959081d6f9e7",)),
        Upstream(
            "sglang.srt.disaggregation.mooncake.conn", "MooncakeKVManager._handle_abort_notification", ("0f026edd7f27",)
        ),
        Upstream(
            "sglang.srt.disaggregation.mooncake.conn", "MooncakeKVManager.start_prefill_thread", ("a07c9e6347f1",)
        ),
        Upstream("sglang.srt.disaggregation.mooncake.conn", "MooncakeKVManager.start_decode_thread", ("100afbe13e4b",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_failure", ("341fd988d2e7",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_transfer", ("e051408f69ea",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.record_failure", ("c882f96eeec7",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager._room_notify_targets", ("c38e68e707d8",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
    ),
)
