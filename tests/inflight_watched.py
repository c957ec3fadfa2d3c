"""What the watchdog sees, says and leaves alone, on SGLang's own prefill queue, senders and scheduler, patched.

    python -m tests.inflight_watched

Beside it run the senders (`tests.inflight_senders`), decode's half (`tests.inflight_decode`) and several ranks
(`tests.inflight_ranks`), for the import of SGLang costs more than all of them. It says as JSON, for each scene, what
was seen.
"""

import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from serving.inflight import hold, pipeline, settle
from serving.inflight.report import Inflight, Outcome, Stratum
from serving.patches import registry
from tests.inflight_rooms import HERE, NAMES, PATCHES, TIMEOUT_S, Prefill, Recorded

from sglang.srt.disaggregation import utils  # isort: skip  # tests.inflight_rooms quiets its warnings first
from sglang.srt.disaggregation.base import KVPoll  # isort: skip
from sglang.srt.managers.scheduler import Scheduler  # isort: skip
from sglang.srt.managers.scheduler_pp_mixin import SchedulerPPMixin  # isort: skip
from sglang.srt.runtime_context import get_parallel  # isort: skip

ENVIRONMENT = {hold.VARIABLE: "1"}
PAGES = 3


class Written(Recorded):
    """A report that also writes down each request's transferred bytes and stratum, and when the queue was shown."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.transferred: list[list[Any]] = []
        self.shown_s: list[float] = []

    def show(self, inflight: Inflight) -> None:
        super().show(inflight)
        self.shown_s.append(self._clock())

    def left(
        self, outcome: Outcome, dwell_s: float, transferred_bytes: int, *, health_check: bool, stratum: Stratum | None
    ) -> None:
        super().left(outcome, dwell_s, transferred_bytes, health_check=health_check, stratum=stratum)
        self.transferred.append([outcome, transferred_bytes, stratum])


class Watched(Prefill, SchedulerPPMixin):  # type: ignore[misc]  # it ships no types
    """A prefill that can send what it has computed, and poll as a pipeline's first stage does."""

    kv_checksum_computer = None
    enable_staging = False

    def __init__(self, *, stages: int = 1) -> None:
        super().__init__(stages=stages)
        self.report = self.written = Written(lambda: self.now_s)
        self.pp_group.is_first_rank = True
        self.manager._dcp_pack_max_tokens = None
        self.disagg_prefill_pending_chunk_rids: set[str] = set()
        self.disagg_metadata_buffers = SimpleNamespace(set_buf=lambda _: None)
        self.disagg_prefill_bootstrap_queue = SimpleNamespace(kv_manager=self.manager)
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.arange(8 * PAGES).reshape(8, PAGES))
        self.token_to_kv_pool_allocator = SimpleNamespace(
            page_size=1, translate_kv_indices_for_transfer=lambda indices: indices
        )

    def sends(self, request: Any) -> int:
        """The KV of a request is sent, all in one chunk: how many chunks wait for a transfer worker then."""
        queue = self.manager.transfer_queues[0]
        request.start_send_idx, request.extend_end, request.origin_input_ids = 0, PAGES, [0] * PAGES
        request.disagg_decode_prefix_len = 0
        request.disagg_kv_sender.init(PAGES, request.metadata_buffer_index)
        peer = SimpleNamespace(endpoint=HERE, dst_port=1, is_dummy=False)
        self.manager.transfer_infos[request.bootstrap_room] = {f"{HERE}:1": peer}
        self.send_kv_chunk(request, last_chunk=True)
        return len(queue._buf)

    def ended_here(self) -> list[str]:
        """What this stage of a pipeline says has ended on it."""
        return list(self._pp_pd_get_prefill_transferred_ids())


def an_engine_that_keeps_pages_is_not_idle() -> Any:
    """Whether the engine says that it is idle, however it is asked: while pages are kept, and when none are."""
    prefill = Watched()
    request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Transferring)
    outstanding = prefill.manager._staging_outstanding
    outstanding[request.bootstrap_room] = 1
    prefill.fails(request)
    prefill.passes()
    empty = SimpleNamespace(is_empty=lambda: True)
    engine = SimpleNamespace(
        running_batch=empty,
        last_batch=None,
        chunked_req=None,
        dllm_manager=SimpleNamespace(any_staging_reqs=lambda: False),
        enable_overlap=False,
        _pp_microbatches_drained=lambda: True,
        waiting_queue=[],
        _engine_paused=False,
        disaggregation_mode=utils.DisaggregationMode.PREFILL,
        grammar_manager=SimpleNamespace(grammar_queue=[]),
        disagg_prefill_inflight_queue=prefill.disagg_prefill_inflight_queue,
        disagg_prefill_bootstrap_queue=SimpleNamespace(queue=[]),
        enable_hisparse=False,
        enable_hierarchical_cache=False,
        enable_lmcache=False,
    )

    def asked() -> dict[str, bool]:
        return {
            "plainly": Scheduler.is_fully_idle(engine),
            "whatever waits": Scheduler.is_fully_idle(engine, ignore_waiting=True),
            "for a health check": Scheduler.is_fully_idle(engine, for_health_check=True),
            "for a health check, by position": Scheduler.is_fully_idle(engine, True),
        }

    kept = asked()
    outstanding[request.bootstrap_room] = 0
    prefill.passes()
    none = asked()
    engine.waiting_queue = [request]
    return {"kept": kept, "none": none, "none, and one waits": asked()["plainly"]}


def a_parked_request_that_waits() -> Any:
    """What the watchdog makes of a request that nobody asks for, for five times its timeout: that has its own limit."""
    prefill = Watched()
    request = prefill.enters(parked=True)
    for _ in range(5):
        prefill.now_s += TIMEOUT_S
        prefill.looks()
    shown = prefill.written.last
    assert shown is not None
    status = NAMES[prefill.manager.request_status[request.bootstrap_room]]
    return [prefill.dsv4_inflight.fires, status, shown.by_state["bootstrapping"], shown.oldest_age_s]


def a_parked_request_that_fails() -> Any:
    """Nobody has asked for its KV, so nothing of it was sent: what is released with it, on one stage and on two."""
    said = {}
    for stages in (1, 2):
        prefill = Watched(stages=stages)
        request = prefill.enters(parked=True)
        prefill.fails(request, "decode never asked")
        if stages == 1:
            prefill.passes()
        else:
            prefill.agrees_on(request.rid, pipeline.FAILED + request.rid)
        answer = prefill.answered[request.rid][1]
        said[f"{stages}"] = [prefill.released, len(settle.here or ()), "decode never asked" in answer]
    return said


def since_progress() -> Any:
    """For how long nothing has happened: while nothing does, after each thing that may happen, and with none left."""
    prefill = Watched()
    first = prefill.enters(KVPoll.WaitingForInput)

    def shown(after_s: float) -> float:
        prefill.passes(after_s)
        assert prefill.written.last is not None
        return round(prefill.written.last.since_progress_s, 3)

    waited = [shown(1.0), shown(1.0)]
    prefill.enters(KVPoll.WaitingForInput)
    entered = [shown(0.5), shown(1.0)]
    prefill.manager.update_status(first.bootstrap_room, KVPoll.Transferring)
    started = [shown(0.5), shown(1.0)]
    prefill.manager.update_status(first.bootstrap_room, KVPoll.Success)
    ended = [shown(0.0), shown(1.0)]
    left = prefill.disagg_prefill_inflight_queue[0]
    prefill.manager._staging_outstanding[left.bootstrap_room] = 1
    prefill.fails(left)
    # Its pages are kept, which is no transfer that might make progress.
    none_left = [shown(1.0), shown(1.0)]
    return {"waited": waited, "entered": entered, "started": started, "ended": ended, "none left": none_left}


def transferred() -> Any:
    """What is reported as transferred of a request, by how it ended, and its stratum; the last was never sent."""
    prefill = Watched()
    succeeds, fails, _ = (prefill.enters(KVPoll.WaitingForInput) for _ in range(3))
    queued = [prefill.sends(request) for request in (succeeds, fails)]
    prefill.manager.update_status(succeeds.bootstrap_room, KVPoll.Success)
    prefill.fails(fails)
    prefill.passes()
    prefill.passes(TIMEOUT_S)
    return [queued, prefill.written.transferred]


def which_is_the_oldest() -> Any:
    """Whether what is shown of the oldest request's id tells it from the next, and is the same as long as it is."""
    prefill = Watched()

    def shown() -> int:
        prefill.passes(0.5)
        assert prefill.written.last is not None
        return prefill.written.last.oldest_rid_hash

    first, second = prefill.enters(KVPoll.WaitingForInput), prefill.enters(KVPoll.WaitingForInput)
    before = [shown(), shown()]
    prefill.manager.update_status(first.bootstrap_room, KVPoll.Success)
    after = shown()
    prefill.manager.update_status(second.bootstrap_room, KVPoll.Success)
    empty = shown()
    prefill.enters(KVPoll.WaitingForInput, rid=second.rid)
    return {
        "the same": before[0] == before[1],
        "told apart": before[0] != after,
        "32 bits": all(0 < found < 1 << 32 for found in (*before, after)),
        "none": empty,
        "again": shown() == after,
    }


def how_often_it_is_shown() -> Any:
    """While one request waits, at a hundred passes a second: whether it is often enough, and no more than that."""
    prefill = Watched()
    prefill.enters(KVPoll.WaitingForInput)
    for _ in range(300):
        prefill.passes(0.01)
    times = prefill.written.shown_s[1:]
    between = [round(after - before, 2) for before, after in itertools.pairwise([*times, prefill.now_s])]
    return [max(between) <= 0.3, min(between[:-1], default=0.0) >= 0.2]


def the_lease_of_a_canary() -> Any:
    """A canary that is held for 2 s, where canaries may be held and where not; its KV is never sent."""
    said = {}
    for where, value in (("allowed", "1"), ("not allowed", "0")):
        os.environ[hold.VARIABLE] = value
        prefill = Watched()
        request = prefill.enters(KVPoll.WaitingForInput, rid="dsv4-hold-2-canary")
        other = prefill.enters(KVPoll.WaitingForInput, rid="no-canary")
        early = prefill.passes(1.9)
        shown = prefill.written.last
        ended = prefill.passes(0.2)
        said[where] = {
            "early": early,
            "held": shown and shown.held,
            "ended": ended,
            "message": prefill.answered.get(request.rid, [None, ""])[1].split(". Request ")[0],
            "fires": prefill.dsv4_inflight.fires,
            "left": [left[1] for left in prefill.written.said],
            "the other stays": other in prefill.disagg_prefill_inflight_queue,
        }
    return said


def what_is_held() -> Any:
    """How many chunks wait for a worker once a request was sent: of a canary that asks to be held, and of others."""
    said = {}
    for rid in ("dsv4-hold-2-canary", "dsv4-hold-", "x-dsv4-hold-2", "any"):
        prefill = Watched()
        said[rid] = prefill.sends(prefill.enters(KVPoll.WaitingForInput, rid=rid))
    return said


def a_stage_of_a_pipeline() -> Any:
    """Past the deadline: what a pass does that all stages agreed on, and what the stage's own poll does after it."""
    prefill = Watched(stages=2)
    request = prefill.enters(KVPoll.WaitingForInput)
    parked = prefill.enters(parked=True)
    other = prefill.enters(KVPoll.WaitingForInput, KVPoll.Success)
    before = prefill.ended_here()
    prefill.now_s += TIMEOUT_S
    parked.pending_bootstrap = False
    prefill.manager.update_status(parked.bootstrap_room, KVPoll.WaitingForInput)
    agreed = prefill.agrees_on(other.rid)
    after_it = [prefill.dsv4_inflight.fires, NAMES[request.disagg_kv_sender.poll()]]
    prefill.now_s += 1.0
    polled = prefill.ended_here()
    fires = prefill.dsv4_inflight.fires
    # The clock of the one that was parked began with the pass, and not with the poll.
    prefill.now_s += TIMEOUT_S - 1.0
    prefill.agrees_on()
    return {
        "before": before == [other.rid],
        "agreed": agreed == [other.rid],
        "after it": after_it,
        "polled": polled == [request.rid, pipeline.FAILED + request.rid],
        "fires": fires,
        "in the end": sorted(prefill.ended_here())
        == sorted([request.rid, parked.rid, *(pipeline.FAILED + ended.rid for ended in (request, parked))]),
    }


SCENES: tuple[Callable[[], Any], ...] = (
    an_engine_that_keeps_pages_is_not_idle,
    a_parked_request_that_waits,
    a_parked_request_that_fails,
    since_progress,
    transferred,
    which_is_the_oldest,
    how_often_it_is_shown,
    the_lease_of_a_canary,
    what_is_held,
    a_stage_of_a_pipeline,
)


def apply_patches() -> None:
    """As the plugin does, those of this subject alone, where canaries may be held."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    names = (*PATCHES, "held-canary", "one-look-poll")
    registry.apply(ENVIRONMENT, [patch for patch in registry.discover() if patch.name in names])
    HookRegistry.apply_hooks()


def play() -> dict[str, Any]:
    """What was seen, by scene."""
    from tests import inflight_decode, inflight_ranks, inflight_senders, inflight_strata

    # Before there are threads, sockets and a process group here: they are forked off.
    ranks = inflight_ranks.begin()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with get_parallel().override(**inflight_ranks.ALONE):
        scenes = (*SCENES, *inflight_senders.SCENES, *inflight_strata.SCENES, *inflight_decode.SCENES)
        said = {scene.__name__: scene() for scene in scenes}
    return said | ranks.said()


def main() -> None:
    """Say what was found."""
    logging.disable(logging.CRITICAL)
    apply_patches()
    failed = 1
    try:
        json.dump(play(), sys.stdout, indent=1)
        sys.stdout.flush()
        failed = 0
    except Exception:  # noqa: BLE001 - whatever it is, it is to be seen
        traceback.print_exc()
    finally:
        os._exit(failed)  # NIXL's threads never end, and are no daemons


if __name__ == "__main__":
    main()
