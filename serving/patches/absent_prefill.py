"""A request whose prefill is away ends at once, and not once decode has looked for it in vain."""

from serving.patches.patch import Hook, Patch, Upstream

_DECODE = "sglang.srt.disaggregation.decode"
_CONN = "sglang.srt.disaggregation.common.conn"

PATCH = Patch(
    name="absent-prefill",
    defect=(
        "decode looks fifteen times, a second apart, for a prefill that is not running, although prefill's half of the "
        "request is lost already; when prefill comes back meanwhile, decode asks it for a room that no request opens"
    ),
    safe_because=(
        "prefill's bootstrap server listens for longer than its HTTP server, so while it refuses connections nobody "
        "has taken the other half; a prefill that is busy refuses none, and is looked for as before. A request whose "
        "KV is computed again is left alone, for decode sends its other half later"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang's decode ends what waits for a prefill that refuses connections",
    hooks=(
        Hook(
            f"{_DECODE}.DecodePreallocQueue._ensure_prefill_info", "around", "serving.peers.absent:ensure_prefill_info"
        ),
    ),
    upstream=(
        Upstream(_DECODE, "DecodePreallocQueue._ensure_prefill_info", ("5e0f6918b41c",)),
        Upstream(_DECODE, "DecodePreallocQueue._resolve_pending_reqs", ("ebaac0e077ab",)),
        Upstream(_DECODE, "DecodePreallocQueue._update_handshake_waiters", ("717bcd0fcf6f",)),
        Upstream(_CONN, "CommonKVManager.try_ensure_parallel_info", ("e34be2ed9a67",)),
        Upstream(_CONN, "CommonKVManager.record_failure", ("c882f96eeec7",)),
        Upstream(_CONN, "CommonKVReceiver.abort", ("232975101c36",)),
        Upstream(_CONN, "CommonKVReceiver.failure_exception", ("98a7021048ba",)),
        Upstream(_CONN, "CommonKVBootstrapServer._handle_route_get", ("2c0959eb966b",)),
    ),
    required=False,
)
