"""The strata of requests, with SGLang's own senders of both backends, patched: who is the first, and by size.

Played by `tests.inflight_watched`.
"""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from serving.inflight import strata
from tests.inflight_rooms import BACKENDS, HERE, manager_of

from sglang.srt.disaggregation.base import KVPoll  # isort: skip  # tests.inflight_rooms quiets its warnings first

TOKENS_PER_PAGE = 16
BYTES_PER_PAGE = 1 << 16
MIB = 1 << 20
_rooms = itertools.count(2_000_000)


class Sending:
    """A prefill rank that sends to decode workers; each is a session with a port, as Mooncake needs it."""

    def __init__(self, backend: str) -> None:
        kind, self._sender = BACKENDS[backend]
        self.manager = manager_of(kind)
        self.manager.kv_args.page_size, self.manager.kv_item_lens_sum = TOKENS_PER_PAGE, BYTES_PER_PAGE
        self.manager._peer_reload_times = {}

    def registers(self, *peers: str) -> None:
        """These workers, or others under their names."""
        for peer in peers:
            self.manager.decode_kv_args_table[peer] = SimpleNamespace()

    def sends(self, tokens: int, *peers: str, cached: int = 0, dummy: str = "", twice: bool = False) -> Any:
        """A request of so many tokens whose KV is sent to these workers."""
        room = next(_rooms)
        sender = self._sender(self.manager, f"{HERE}:1", room)
        self.manager.update_status(room, KVPoll.WaitingForInput)
        self.manager.transfer_infos[room] = {
            peer: SimpleNamespace(endpoint=HERE, dst_port=1, is_dummy=peer == dummy) for peer in peers
        }
        sender.init(1 + twice, 0)
        for page in range(1 + twice):
            sender.send(np.array([page], dtype=np.int32))
            # As a worker does with the last chunk.
            self.manager.transfer_infos.pop(room, None)
        return SimpleNamespace(disagg_kv_sender=sender, origin_input_ids=[0] * tokens, disagg_decode_prefix_len=cached)

    def leaves(self, request: Any, *, arrived: bool = True) -> str:
        """Its stratum when it leaves the queue."""
        found = strata.stratum_of(request)
        if arrived:
            strata.arrived(request.disagg_kv_sender)
        return found

    def passes(self, tokens: int, *peers: str, arrived: bool = True, **how: Any) -> str:
        """Sent, and gone."""
        return self.leaves(self.sends(tokens, *peers, **how), arrived=arrived)


def who_is_the_first() -> Any:
    """Request after request, with each backend."""
    return {backend: _who_is_the_first(backend) for backend in BACKENDS}


def _who_is_the_first(backend: str) -> Any:
    one, two = f"{HERE}:1", f"{HERE}:2"
    side = Sending(backend)
    side.registers(one, two)
    found = {
        "fails": side.passes(1, one, arrived=False),
        "arrives": side.passes(1, one, twice=True),
        "the next": side.passes(1, one),
        "another decode": [side.passes(1, two), side.passes(1, two)],
    }
    both = [side.sends(1, one), side.sends(1, one)]
    side.registers(one)
    found["registered anew under way"] = side.leaves(both[0])
    found["and the next"] = side.passes(1, one)
    side.registers(one)
    at_once = [side.sends(1, one), side.sends(1, one)]
    found["two at once"] = [side.leaves(request) for request in at_once]
    side.registers(two)
    found["one of two ranks is new"] = [side.passes(1, one, two), side.passes(1, one, two)]
    side.registers(two)
    found["nothing is sent to the new one"] = side.passes(1, one, two, dummy=two)
    return found


def a_connection_that_nixl_makes_anew() -> Any:
    """SGLang reloads a worker's metadata while a request is under way, and between two."""
    peer = f"{HERE}:1"
    side = Sending("nixl")
    side.registers(peer)
    side.passes(1, peer)
    under_way = side.sends(1, peer)
    side.manager._peer_reload_times[peer] = 7.0
    found = [side.leaves(under_way), side.passes(1, peer)]
    side.manager._peer_reload_times[peer] = 8.0
    return [*found, side.passes(1, peer), side.passes(1, peer)]


def strata_by_size() -> Any:
    """By the tokens that are sent; the last ones begin with a prefix that decode has."""
    peer = f"{HERE}:1"
    side = Sending("nixl")
    side.registers(peer)
    side.passes(1, peer)
    tokens_per_mib = TOKENS_PER_PAGE * MIB // BYTES_PER_PAGE
    sizes = [1, tokens_per_mib, tokens_per_mib + 1, 16 * tokens_per_mib, 256 * tokens_per_mib, 4096 * tokens_per_mib]
    found = [side.passes(tokens, peer) for tokens in (*sizes, 4096 * tokens_per_mib + 1)]
    never_sent = SimpleNamespace(
        disagg_kv_sender=BACKENDS["nixl"][1](side.manager, f"{HERE}:1", next(_rooms)),
        origin_input_ids=[0] * 17,
        disagg_decode_prefix_len=0,
    )
    cached = side.sends(17 * tokens_per_mib, peer, cached=16 * tokens_per_mib)
    return [found, side.leaves(cached), strata.kv_bytes(never_sent), side.leaves(never_sent, arrived=False)]


SCENES: tuple[Callable[[], Any], ...] = (who_is_the_first, a_connection_that_nixl_makes_anew, strata_by_size)
