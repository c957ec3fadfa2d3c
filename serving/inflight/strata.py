"""Which requests should take about as long: by the KV that they send, and whether their connection has yet to be made.

**KV.** The pages of the prompt that decode has not got, times the bytes of a page in all buffers that SGLang sends page
by page (`kv_item_lens`): of all layers of this pipeline stage and the heads of this rank, drafts too. For DeepSeek-V4
these are the pools of compressed KV, those of its indexer and, where it is stored apart, the rope half; an item of each
is what belongs to one page of uncompressed tokens, so they add up. Left out is what SGLang sends as state, which for
DeepSeek-V4 does not grow with the prompt: the sliding window and the compressors' open groups. It is the same few MB
for every request that is longer than the window. (Index keys of DeepSeek-V3.2 are state too, and are left out as well.)
Of all requests it is computed alike, however they end: what a sender has counted lacks the chunks that it was not asked
for any more. Where context-parallel ranks share the pages, or several decode ranks each get a copy, it is still the
whole, once.

**First.** A connection to a decode worker is made when something is first sent to it, and what is sent then waits for
it. A request is `first` when nothing had arrived over one of its connections before it was sent, so more than one is
where several come at once. A connection is known by the registration of its worker, which is another one once the
worker was started again, on NIXL by its agent's name and on Mooncake also under the same session; and by when NIXL
dropped and reloaded that worker's metadata, after which it connects anew. A connection that Mooncake makes anew by
itself is not seen: nothing says so, and those requests stay in the stratum of their size.
"""

import math
from typing import Final

from serving.inflight.report import Stratum
from serving.untyped import Untyped

_MIB: Final = 1 << 20
UP_TO: Final[tuple[tuple[int, Stratum], ...]] = (
    (_MIB, "up_to_1MiB"),
    (16 * _MIB, "up_to_16MiB"),
    (256 * _MIB, "up_to_256MiB"),
    (4096 * _MIB, "up_to_4GiB"),
)
"""The most bytes of KV in each stratum; what has more is in `more`."""

_NOTHING_YET: Final = object()
"""In place of when a worker's metadata was reloaded: nothing has arrived since it registered."""


def before_send(sender: Untyped, *_: object, **__: object) -> None:
    """Before a chunk is queued: remember the connections that its request goes over, which a transfer worker forgets
    once the last one is sent, and whether anything has arrived over each."""
    if hasattr(sender, "dsv4_connections"):
        return
    manager = sender.kv_mgr
    infos = manager.transfer_infos.get(sender.bootstrap_room) or {}
    # The control thread may add to it meanwhile.
    names = [name for name, info in list(infos.items()) if not info.is_dummy]
    sender.dsv4_connections = {name: _connection(manager, name) for name in names}
    sender.dsv4_is_first = not all(_has_carried(*found) for found in sender.dsv4_connections.values())


def arrived(sender: Untyped) -> None:
    """All of a request has arrived: its connections are there, and who is sent from now on is not the first."""
    for name in getattr(sender, "dsv4_connections", ()):
        registration, reloaded = _connection(sender.kv_mgr, name)
        if registration is not None:
            registration.dsv4_carried = reloaded


def stratum_of(request: Untyped) -> Stratum:
    """The stratum of a request that leaves prefill's inflight queue and is no health check."""
    if _is_first(request.disagg_kv_sender):
        return "first"
    size = kv_bytes(request)
    return next((stratum for most, stratum in UP_TO if size <= most), "more")


def kv_bytes(request: Untyped) -> int:
    """The bytes of KV that this rank has to send for a request, as this module counts them."""
    manager = request.disagg_kv_sender.kv_mgr
    tokens: int = len(request.origin_input_ids) - request.disagg_decode_prefix_len
    page_size: int = manager.kv_args.page_size
    bytes_per_page: int = manager.kv_item_lens_sum
    return math.ceil(tokens / page_size) * bytes_per_page


def _is_first(sender: Untyped) -> bool:
    """Whether a connection had to be made for it, before it was sent or while it was. What was never sent needed
    none."""
    if not hasattr(sender, "dsv4_connections"):
        return False
    now = ((_connection(sender.kv_mgr, name), before) for name, before in sender.dsv4_connections.items())
    return bool(sender.dsv4_is_first) or any(
        registration is not registration_before or reloaded != reloaded_before
        for (registration, reloaded), (registration_before, reloaded_before) in now
    )


def _connection(manager: Untyped, name: str) -> tuple[Untyped, object]:
    """A decode worker's registration, None where it has none, and when NIXL reloaded its metadata, None if never."""
    return manager.decode_kv_args_table.get(name), getattr(manager, "_peer_reload_times", {}).get(name)


def _has_carried(registration: Untyped, reloaded: object) -> bool:
    return bool(getattr(registration, "dsv4_carried", _NOTHING_YET) == reloaded)
