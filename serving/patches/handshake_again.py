"""A request whose handshake was lost with its connection is handed over again."""

from serving.patches.patch import Hook, Patch, Upstream

_CONN = "sglang.srt.disaggregation.common.conn"
_NIXL = "sglang.srt.disaggregation.nixl.conn"

PATCH = Patch(
    name="handshake-again",
    defect=(
        "decode names a request's pages to prefill in one message, which is lost when the connection breaks at that "
        "moment; both then wait for the other until the bootstrap timeout, 300 s later, with nothing inflight"
    ),
    safe_because=(
        "the very same message is sent again, to the same rank, for a request that is still waited for; prefill puts "
        "it in the place of the first, and a status that is further on stays"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="decode repeats a handshake, or prefill acknowledges it",
    hooks=(Hook(f"{_CONN}.CommonKVReceiver._send_bootstrap_message", "around", "serving.transfer.handshakes:send"),),
    upstream=(
        Upstream(_CONN, "CommonKVReceiver._send_bootstrap_message", ("779aa4c877c1",)),
        Upstream(_CONN, "CommonKVReceiver._connect_to_bootstrap_server", ("ea9370115628",)),
        Upstream(_CONN, "CommonKVReceiver._connect", ("9cba33873f4c",)),
        Upstream(_CONN, "CommonKVReceiver.disconnect_endpoint", ("d4e56efd2166",)),
        Upstream(_NIXL, "NixlKVManager._start_bootstrap_thread", ("959081d6f9e7",)),
    ),
    required=False,
    relies_on=("sticky-status",),
)
