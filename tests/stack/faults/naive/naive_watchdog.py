"""The plain inflight watchdog, as an SGLang plugin: what the harness must be able to tell from a right one.

It stamps a request when it first sees it in the queue, and fails it on prefill once its time is over: its pages are
free at once, whatever the transfer is doing, and nobody tells decode. SGLang finds it where PYTHONPATH has this folder.
"""

import os
import time
from typing import Any

QUEUE_PASS = (
    "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue"
)
TIMEOUT_S = float(os.environ.get("SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT", "4"))


def register() -> None:
    """Called by SGLang in every process of an engine."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(QUEUE_PASS, fail_what_is_late, HookType.BEFORE)


def fail_what_is_late(scheduler: Any, *_: object) -> None:
    """Before a pass over the queue: whatever has been in it for too long is failed there and then."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    now = time.monotonic()
    for req in scheduler.disagg_prefill_inflight_queue:
        entered = req.__dict__.setdefault("naive_entered_s", now)
        if now - entered > TIMEOUT_S:
            req.disagg_kv_sender.kv_mgr.update_status(req.bootstrap_room, KVPoll.Failed)
