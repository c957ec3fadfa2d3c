"""Two ranks that share their requests, as two processes with a real gloo group, on SGLang's own queues, patched.

Both must hand out the same pages at the same time. `begin` forks them off, and what they have seen comes back later.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from serving.inflight import pipeline
from tests.inflight_decode import Decode
from tests.inflight_rooms import Prefill

from sglang.srt.disaggregation.base import KVPoll  # isort: skip  # tests.inflight_rooms quiets its warnings first
from sglang.srt.runtime_context import get_parallel  # isort: skip

RANKS = 2
WITHIN_S = 60.0
SIZES = ("attn_tp_size", "attn_cp_size", "pp_size", "num_dp_ranks")
ALONE = {
    **dict.fromkeys(SIZES, 1),
    **dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "tp_rank", "pp_rank", "dp_rank"), 0),
}
"""One rank of everything."""


@dataclass(frozen=True)
class Groups:
    """Of one rank: the group of both, and that of this one alone."""

    rank: int
    both: Any
    alone: Any


def one_rank_is_still_sending(groups: Groups) -> Any:
    """What this rank has released at each step of a request that failed on one rank, while the other sends from it.

    The ranks share the request as tensor or as context parallel ones, and the sending one is the first or the second.
    Steps: it has failed; it still is sent; nothing is sent any more.
    """
    said = {}
    for kind in ("tensor", "context"):
        for sending in range(RANKS):
            prefill = Prefill(ranks=RANKS, first=groups.rank == 0)
            prefill.attn_tp_cpu_group = groups.both if kind == "tensor" else groups.alone
            prefill.attn_cp_cpu_group = groups.both if kind == "context" else groups.alone
            request = prefill.enters(KVPoll.WaitingForInput, KVPoll.Transferring)
            outstanding = prefill.manager._staging_outstanding
            if groups.rank == sending:
                outstanding[request.bootstrap_room] = 1
            else:
                prefill.fails(request)
            steps = []
            for step in ("failed", "still sent", "over"):
                if step == "over" and groups.rank == sending:
                    outstanding[request.bootstrap_room] = 0
                prefill.passes(1.0)
                steps.append(list(prefill.released))
            said[f"{kind}, sent by {sending}"] = [*steps, prefill.left_of(request)]
    return said


def one_rank_has_its_acknowledgement(groups: Groups) -> Any:
    """On decode: whether this rank says that pages could be freed, as one rank after the other is acknowledged."""
    decode = Decode(stages=2, group=groups.both)
    request = decode.enters()
    decode.fails(request)
    decode.acts_on(decode.ended_here())
    said = []
    for acknowledged in (None, 0, 1):
        if acknowledged == groups.rank:
            decode.is_acknowledged(request)
        said.append(any(name.startswith(pipeline.SETTLED) for name in decode.ended_here()))
    return said


SCENES: tuple[Callable[[Groups], Any], ...] = (one_rank_is_still_sending, one_rank_has_its_acknowledgement)


@dataclass(frozen=True)
class Ranks:
    """The processes, and where each says what it has seen."""

    processes: list[Any]
    results: list[Connection]

    def said(self) -> dict[str, list[Any]]:
        """By scene what each rank has seen; a rank that has failed or hangs says so instead."""
        said = [result.recv() if result.poll(WITHIN_S) else {} for result in self.results]
        for process in self.processes:
            process.kill()
            process.join()
        return {scene.__name__: [of_rank.get(scene.__name__, "nothing") for of_rank in said] for scene in SCENES}


def begin() -> Ranks:
    """Fork off both ranks. The patches must be in force, and nothing may run here that a fork would break."""
    store = Path(tempfile.mkdtemp()) / "store"
    context = multiprocessing.get_context("fork")
    processes, results = [], []
    for rank in range(RANKS):
        result, end = context.Pipe(duplex=False)
        processes.append(context.Process(target=_rank, args=(rank, str(store), end), daemon=True))
        processes[-1].start()
        end.close()
        results.append(result)
    return Ranks(processes, results)


def _rank(rank: int, store: str, result: Connection) -> None:
    said: dict[str, Any] = {}
    within = timedelta(seconds=WITHIN_S / 4)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS, timeout=within)
    groups = Groups(rank, dist.group.WORLD, [dist.new_group([each]) for each in range(RANKS)][rank])
    with get_parallel().override(**ALONE):
        for scene in SCENES:
            try:
                said[scene.__name__] = scene(groups)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what was seen
                said[scene.__name__] = repr(error)
    result.send(said)
