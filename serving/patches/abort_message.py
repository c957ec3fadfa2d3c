"""NIXL on prefill understands ABORT."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="abort-message",
    defect=(
        "a decode that gives a request up sends ABORT to prefill, and prefill's NIXL thread that waits for decode "
        "takes it for foreign traffic and dies of an assertion: after one cancelled request nothing is ever "
        "transferred again, while every health check stays green"
    ),
    safe_because=(
        "an ABORT is taken out before SGLang's own loop sees it, and does what it does on later versions: an unknown "
        "or finished room is left alone, any other fails, so that no further chunk is written into pages that decode "
        "has taken back; all other messages pass as they are"
    ),
    needed_by=">=0.5.14,<0.5.16",
    made_for=">=0.5.15,<0.5.16",
    delete_when="0.5.15 is no longer supported",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager._start_bootstrap_thread",
            "before",
            "serving.transfer.abort_message:understand_abort",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._start_bootstrap_thread", ("7c6cfc32c38f",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVReceiver._send_abort_notification", ("cbc0cd2ca500",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.record_failure", ("c882f96eeec7",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.update_status", ("3a14b450f48f",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
    ),
)
