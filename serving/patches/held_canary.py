"""A canary can ask to be pinned, to prove that the watchdog fires."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="held-canary",
    defect="nobody can see the watchdog fire without harming a real request",
    safe_because=(
        "nothing is changed for a request whose id does not ask for it, and nothing at all without "
        "SGLANG_DSV4_ALLOW_HOLD=1; a held canary sends no KV and is ended by the watchdog or by its lease"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="never, as long as the watchdog is ours",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",
            "around",
            "serving.inflight.hold:send_chunk",
        ),
    ),
    upstream=(
        Upstream(
            "sglang.srt.disaggregation.prefill", "SchedulerDisaggregationPrefillMixin.send_kv_chunk", ("9b8ffd5bfaec",)
        ),
        Upstream(
            "sglang.srt.disaggregation.prefill", "SchedulerDisaggregationPrefillMixin._send_kv_chunk", ("f799b02a605e",)
        ),
    ),
    only_if="SGLANG_DSV4_ALLOW_HOLD",
    relies_on=("inflight-watchdog",),
    required=False,
)
