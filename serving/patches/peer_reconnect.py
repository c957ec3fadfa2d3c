"""A NIXL peer whose connection was lost and that lives is connected again."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="peer-reconnect",
    defect=(
        "one lost UCX connection ends every later transfer to that decode, with all health green: NIXL says that the "
        "metadata of a disconnected peer is valid, and SGLang registers a peer anew only when it is not; and decode "
        "never hears that nothing is written any more for a room whose handles failed in doubt. UCX notices the loss "
        "at the next transfer, whose request fails for it"
    ),
    safe_because=(
        "a registration is dropped after a transfer to that peer has failed, by the one worker that uses it, which has "
        "waited for its other handles; SGLang's own code then registers it again from what it holds. What is sent once "
        "more is the same bytes to the same pages, of a room that is still open, after its connections were closed and "
        "before any later chunk of it"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="NIXL's checkRemoteMD says no of a disconnected peer, or SGLang reloads on every transport error",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager.transfer_worker",
            "around",
            "serving.transfer.once_more:work",
        ),
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager._await_handles",
            "around",
            "serving.transfer.once_more:await_handles",
        ),
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager.conclude_failure",
            "around",
            "serving.transfer.once_more:conclude_failure",
        ),
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager.poison_deferred_ack_room",
            "around",
            "serving.transfer.reconnect:in_doubt",
        ),
        Hook(
            "sglang.srt.disaggregation.nixl.conn.NixlKVManager._reload_invalidated_peers",
            "around",
            "serving.transfer.reconnect:reload_peers",
        ),
    ),
    upstream=(
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVManager.poison_deferred_ack_room", ("5cd119f010c2",)
        ),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._reload_invalidated_peers", ("fc856e5912c1",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager.transfer_worker", ("cc3cd6b8e40c",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._post_xfer", ("55d6bba452cd",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager._await_handles", ("1574d48c797b",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "NixlKVManager.check_status", ("6b6199d72ee6",)),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.conclude_failure", ("341fd988d2e7",)),
        Upstream("sglang.srt.disaggregation.common.utils", "TransferKVChunk", ("d31a487a5c5b",)),
        Upstream("sglang.srt.disaggregation.common.utils", "FastQueue", ("9fd5674dce09",)),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream(
            "sglang.srt.disaggregation.common.conn", "CommonKVManager._maybe_ack_drained_abort", ("5ddb7c509bc4",)
        ),
        Upstream("sglang.srt.disaggregation.common.conn", "CommonKVManager.send_kv_status_message", ("45d527037087",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "TransferInfo", ("4fd84b4a79df",)),
        Upstream("sglang.srt.disaggregation.nixl.conn", "KVArgsRegisterInfo", ("ff04d25583d4",)),
    ),
)
