"""What SGLang's NIXL worker does with chunks whose connection was lost, with the SGLang of this interpreter.

    python -m tests.lost_connections stock|patched

The manager and its worker are real; the agent stands in for NIXL and ends each post and handle as it is told. It says
as JSON, for each way in which a connection is lost, what was written, what decode was told, and what is left.
"""

import json
import logging
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.transfer_threads import apply_patches, manager_of

warnings.simplefilter("ignore")  # SGLang's, of kernels that this machine has no use for

from sglang.srt.disaggregation.base import KVPoll  # noqa: E402
from sglang.srt.disaggregation.common.utils import TransferKVChunk  # noqa: E402
from sglang.srt.disaggregation.nixl import conn  # noqa: E402

ROOM = 7
PEER = "decode-0"
LOST = conn._NIXL_TRANSPORT_ERRORS[0]


class Over(BaseException):
    """There is no chunk left: it ends the worker, which no Exception does."""


class Chunks:
    """The worker's queue, with all that it will ever get."""

    def __init__(self, chunks: tuple[TransferKVChunk, ...]) -> None:
        self._chunks: queue.Queue[TransferKVChunk] = queue.Queue()
        for chunk in chunks:
            self._chunks.put(chunk)

    def get(self) -> TransferKVChunk:
        """The next one."""
        try:
            return self._chunks.get_nowait()
        except queue.Empty:
            raise Over from None


@dataclass
class Agent:
    """Posts and handles end as they are told to, one after the other, and well when nothing is told."""

    posts: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    written: list[str] = field(default_factory=list)
    is_known: bool = True
    lets_go: bool = True

    def transfer(self, handle: str) -> str:
        """Post a write."""
        is_lost, self.posts = self.posts[:1] == ("lost",), self.posts[1:]
        if is_lost:
            raise LOST("NIXL_ERR_REMOTE_DISCONNECT")
        self.written.append(handle)
        return "PROC"

    def check_xfer_state(self, _: str) -> str:
        """What became of a write."""
        state, self.states = self.states[:1], self.states[1:]
        if state == ("lost",):
            raise LOST("NIXL_ERR_REMOTE_DISCONNECT")
        return state[0] if state else "DONE"

    def check_remote_metadata(self, _: str) -> bool:
        """Whether the peer is registered."""
        return self.is_known

    def remove_remote_agent(self, _: str) -> None:
        """Close the connection."""
        if not self.lets_go:
            raise LOST("NIXL_ERR_NOT_FOUND")
        self.is_known, self.states = False, ()

    def add_remote_agent(self, _: bytes) -> None:
        """Register the peer."""
        self.is_known = True


def prefill_with(agent: Agent) -> Any:
    """SGLang's manager as far as its worker needs it, with one room that is open to one decode."""
    prefill = manager_of(conn.NixlKVManager)
    prefill.agent = agent
    prefill.enable_deferred_decode_kv_release = prefill.is_mla_backend = True
    prefill.is_hybrid_mla_backend = False
    prefill.attn_tp_size = 1
    prefill.kv_args = SimpleNamespace(kv_data_ptrs=[1], engine_rank=0)
    prefill.deferred_bootstrap = prefill._staging_ctx = None
    prefill.request_status = {ROOM: KVPoll.WaitingForInput}
    prefill._peer_reload_lock, prefill._peer_reload_times = threading.Lock(), {}
    prefill.prep_handles, prefill.prep_handles_slice_dst, prefill._prepared_state_plans = {}, {}, {}
    where = {"endpoint": "127.0.0.1", "dst_port": 1}
    prefill.decode_kv_args_table[PEER] = SimpleNamespace(
        decode_tp_size=1,
        requires_dcp_relayout=False,
        kv_xfer_segments=None,
        dst_homogeneous_mem_kind="DRAM",
        dst_kv_ptrs=[1],
        dst_aux_ptrs=[1],
        gpu_id=0,
        agent_metadata=b"",
        **where,
    )
    pages = list(range(8))
    info = SimpleNamespace(room=ROOM, is_dummy=False, agent_name=PEER, dst_kv_indices=pages, dst_aux_index=0, **where)
    prefill.transfer_infos = {ROOM: {PEER: info}}
    prefill.told = []

    def write(what: str) -> str:
        prefill._post_xfer(what, "could not post")
        return what

    def tell(*, status: int, failure_reason: str | None = None, **_: object) -> None:
        prefill.told.append(("failed" if status == KVPoll.Failed else "arrived", failure_reason))

    prefill.send_kvcache = lambda _, pages, *__, **___: write(f"KV of {pages[0]}")
    prefill.send_aux = lambda *_: write("token")
    prefill.send_kv_status_message = tell
    prefill._prepare_payload_xfer = prefill._prepare_state_xfer = lambda _: None
    return prefill


def chunk(page: int, *, is_last: bool) -> TransferKVChunk:
    """One page of the room."""
    return TransferKVChunk(ROOM, [page], slice(page, page + 1), is_last, 0, None)


ONE = (chunk(0, is_last=True),)
TWO = (chunk(0, is_last=False), chunk(1, is_last=True))


@dataclass(frozen=True)
class Seen:
    """What is left of a way in which a connection was lost."""

    written: list[str]
    told: list[tuple[str, str | None]]
    outstanding: int
    connected: bool


def worked(agent: Agent, chunks: tuple[TransferKVChunk, ...], change: Callable[[Any], None] = lambda _: None) -> Seen:
    """What SGLang's worker makes of it, in this thread."""
    prefill = prefill_with(agent)
    change(prefill)
    try:
        prefill.transfer_worker(Chunks(tuple(SimpleNamespace(**vars(one)) for one in chunks)))
    except Over:
        return Seen(agent.written, prefill.told, prefill._staging_outstanding.get(ROOM, 0), agent.is_known)
    raise AssertionError("the worker ended by itself")


def failed_while_connecting(prefill: Any) -> None:
    """The watchdog ends the request while the connection is made anew."""
    prefill._prepare_payload_xfer = lambda _: prefill.request_status.update({ROOM: KVPoll.Failed})


def just_connected(prefill: Any) -> None:
    """The connection was made anew less than a second ago."""
    prefill._peer_reload_times[PEER] = float("inf")


def with_staging(prefill: Any) -> None:
    """Chunks go through buffers that are handed on."""
    prefill.enable_staging = True


def badly_asked(prefill: Any) -> None:
    """Decode's half of the room is nothing that can be written to."""
    prefill.transfer_infos[ROOM][PEER].dst_kv_indices = None


def main(arm: str) -> None:
    """Say what was seen."""
    logging.disable(logging.CRITICAL)
    if arm == "patched":
        apply_patches("peer-reconnect")
    conn.NIXL_ERR_SETTLE_TIMEOUT_S = 0.05
    seen = {
        "nothing": worked(Agent(), TWO),
        "a post": worked(Agent(posts=("lost",)), TWO),
        "a handle": worked(Agent(states=("DONE", "ERR")), ONE),
        "a second post": worked(Agent(posts=("well", "lost")), ONE),
        "twice": worked(Agent(posts=("lost", "lost")), ONE),
        "the request ends meanwhile": worked(Agent(posts=("lost",)), ONE, failed_while_connecting),
        "NIXL does not let go": worked(Agent(posts=("lost",), lets_go=False), ONE),
        "staging": worked(Agent(posts=("lost",)), ONE, with_staging),
        "a write": worked(Agent(states=("PROC", "PROC", "lost")), ONE),
        "a write goes on": worked(Agent(states=("PROC", "ERR") * 10_000, lets_go=False), ONE),
        "a write beside one that goes on": worked(Agent(states=("PROC", "ERR") * 10_000), ONE),
        "connected just now": worked(Agent(states=("ERR",)), ONE, just_connected),
        "another cause": worked(Agent(), ONE, badly_asked),
    }
    json.dump({name: asdict(one) for name, one in seen.items()}, sys.stdout, indent=1)
    sys.stdout.flush()
    os._exit(0)  # NIXL's threads never end, and are no daemons


if __name__ == "__main__":
    main(sys.argv[1])
