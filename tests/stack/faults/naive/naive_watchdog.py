"""The plain inflight watchdog, as an SGLang plugin: what the harness must be able to tell from a right one.

It stamps a request when it first sees it in the queue. Once its time is over the client gets its error, and the
request leaves the queue with its pages, whatever its transfer is doing; which goes on, and tells decode in the end that
all went well. SGLang finds the plugin where PYTHONPATH has this folder.
"""

import os
import time
from http import HTTPStatus
from typing import Any

QUEUE_PASS = (
    "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue"
)
TIMEOUT_S = float(os.environ.get("SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT", "4"))


def register() -> None:
    """Called by SGLang in every process of an engine."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(QUEUE_PASS, end_what_is_late, HookType.BEFORE)


def end_what_is_late(scheduler: Any, *_: object) -> None:
    """Before a pass over the queue: whatever has been in it for too long is taken out there and then."""
    from sglang.srt.disaggregation.prefill import maybe_release_metadata_buffer
    from sglang.srt.disaggregation.utils import prepare_abort
    from sglang.srt.mem_cache.common import release_kv_cache

    now = time.monotonic()
    queue = scheduler.disagg_prefill_inflight_queue
    late = [req for req in queue if now - req.__dict__.setdefault("naive_entered_s", now) > TIMEOUT_S]
    if not late:
        return
    scheduler.disagg_prefill_inflight_queue = [req for req in queue if req not in late]
    for req in late:
        prepare_abort(req, "inflight for too long", status_code=HTTPStatus.INTERNAL_SERVER_ERROR)
        release_kv_cache(req, scheduler.tree_cache, checkpoint=False)
    scheduler.output_streamer.stream_output(late, False, None)
    for req in late:
        maybe_release_metadata_buffer(req, scheduler.req_to_metadata_buffer_idx_allocator)
