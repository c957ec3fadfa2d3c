"""A message between prefill and decode that was lost with its connection is sent again."""

from serving.patches.patch import Hook, Patch, Upstream

_CONN = "sglang.srt.disaggregation.common.conn"
_NIXL = "sglang.srt.disaggregation.nixl.conn"

PATCH = Patch(
    name="lost-messages",
    defect=(
        "decode names a request's pages to prefill in one message, and prefill says in one how the transfer ended; "
        "either is lost when the connection breaks at that moment, and a half waits for the other until the bootstrap "
        "or the waiting timeout, 300 s later"
    ),
    safe_because=(
        "the very same message is sent again, to the same rank, for seconds at most after it was sent. A handshake "
        "takes the place of the first, and a status that is further on stays; a status for a room that has ended is "
        "dropped, and the ranks that have answered are a set"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="both sides repeat what was not acknowledged",
    hooks=(
        Hook(f"{_CONN}.CommonKVReceiver._send_bootstrap_message", "around", "serving.transfer.handshakes:send"),
        Hook(f"{_CONN}.CommonKVManager._send_multipart_locked", "around", "serving.transfer.answers:send"),
    ),
    upstream=(
        Upstream(_CONN, "CommonKVReceiver._send_bootstrap_message", ("779aa4c877c1",)),
        Upstream(_CONN, "CommonKVReceiver._connect_to_bootstrap_server", ("ea9370115628",)),
        Upstream(_CONN, "CommonKVReceiver._connect", ("9cba33873f4c",)),
        Upstream(_CONN, "CommonKVReceiver.disconnect_endpoint", ("d4e56efd2166",)),
        Upstream(_CONN, "CommonKVManager._send_multipart_locked", ("cf2f584f8851",)),
        Upstream(_CONN, "CommonKVManager._connect", ("d52bb4c852f5",)),
        Upstream(_CONN, "CommonKVManager.send_kv_status_message", ("45d527037087",)),
        Upstream(_CONN, "CommonKVManager.apply_prefill_status", ("4bb2dea1ec5f",)),
        Upstream(_NIXL, "NixlKVManager._start_bootstrap_thread", ("959081d6f9e7",)),
    ),
    required=False,
    relies_on=("sticky-status",),
)
