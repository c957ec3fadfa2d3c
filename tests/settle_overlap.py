"""An abort between two chunks while one is being sent and the next computed, on SGLang's own functions; as JSON.

That is the overlapped loop: the result of a chunk arrives a pass after its request has been retired.
"""

import json
import logging
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

from tests import inflight_rooms as rooms


def main() -> None:
    """Print what each step led to."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rooms.apply_patches()
    import torch
    import torch.distributed as dist
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers import scheduler
    from sglang.srt.runtime_context import get_parallel

    from serving.inflight import settle

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sizes = ("attn_tp_size", "attn_cp_size", "pp_size", "num_dp_ranks")
    ranks = ("attn_tp_rank", "attn_cp_rank", "tp_rank", "pp_rank", "dp_rank")
    with get_parallel().override(**dict.fromkeys(sizes, 1), **dict.fromkeys(ranks, 0)):
        prefill, request = _prefill_with_a_chunk_under_way(
            DisaggregationMode.PREFILL, (KVPoll.WaitingForInput, KVPoll.Transferring)
        )
        scheduler._make_abort_req = lambda *_, **__: None
        answers = prefill.answers

        scheduler.Scheduler.process_pending_chunked_abort(prefill)
        aborted = {"released": [*prefill.released], "settling": len(settle.here or ()), "answers": len(answers)}
        result = SimpleNamespace(**nothing_else(), next_token_ids=torch.tensor([1]))
        batch = SimpleNamespace(reqs=[request], spec_info=None, prefill_stats=None, dp_cooperation_info=None)
        prefill.process_batch_result_disagg_prefill(batch, result)
        computed = {"released": [*prefill.released], "settling": len(settle.here or ()), "answers": len(answers)}
        prefill.manager._staging_outstanding[request.bootstrap_room] = 0
        assert settle.here is not None
        settle.here.resolve()
        sent = {"released": [*prefill.released], "settling": len(settle.here), "holds": request.kv.holds_kv}
    sys.stdout.write(json.dumps({"aborted": aborted, "computed": computed, "sent": sent}))
    sys.stdout.flush()
    # The managers' threads are no daemons.
    os._exit(0)


def nothing_else() -> dict[str, None]:
    """The fields of a result of a batch that matter here, all of them absent."""
    names = (
        *(
            "logits_output",
            "next_draft_input",
            "copy_done",
            "extend_input_len_per_req",
            "extend_logprob_start_len_per_req",
        ),
        *("auxiliary_host_output", "routed_experts_output", "indexer_topk_output", "can_run_cuda_graph"),
    )
    return dict.fromkeys(names)


def _prefill_with_a_chunk_under_way(mode: object, statuses: tuple[int, ...]) -> tuple[Any, Any]:
    """A prefill whose second chunk is being computed and whose first is being sent, with an abort that waits."""
    prefill: Any = rooms.Prefill()
    prefill.answers = []
    prefill.disaggregation_mode = mode
    prefill.disagg_prefill_pending_chunk_rids = set()
    prefill.supports_mamba = lambda: False
    prefill.send_abort_output = lambda *_: prefill.answers.append("abort")
    prefill.stream_output = lambda requests, *_: prefill.answers.extend(requests)
    prefill.enable_overlap = True
    prefill.maybe_send_health_check_signal = lambda: None
    prefill.metrics_reporter = SimpleNamespace(enable_metrics=False, report_prefill_stats=lambda **_: None)
    prefill.batch_result_processor = rooms.Unseen()
    prefill.spec_algorithm = SimpleNamespace(is_eagle=lambda: False)
    request: Any = prefill.enters(*statuses, seen=False)
    prefill.disagg_prefill_inflight_queue.clear()
    request.origin_input_ids = list(range(1000))
    request.extend_end = request.tmp_end_idx = 400
    request.inflight_middle_chunks = 1
    request.to_finish = request.discard_output_reason = request.finished_len = request.weight_versions = None
    request.finished = lambda: request.finished_reason is not None
    prefill.manager._staging_outstanding[request.bootstrap_room] = 1
    prefill.chunked_req = prefill._pending_chunked_abort_req = request
    return prefill, request


if __name__ == "__main__":
    main()
