"""A request whose decode worker died ends at once, and not after the bootstrap timeout or never."""

from serving.patches.patch import Hook, Patch, Upstream

_PREFILL = "sglang.srt.disaggregation.prefill"
_COMMON = "sglang.srt.disaggregation.common.conn"
_NIXL = "sglang.srt.disaggregation.nixl.conn"
_MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"

PATCH = Patch(
    name="lost-decode",
    defect=(
        "prefill does not notice that a decode worker died: a request that decode had not asked for yet waits for it "
        "until the bootstrap timeout, 300 s, and the router and its client wait with it; and when that timeout ends a "
        "request for which decode has no room, decode is not told, and keeps its half until it has; and a decode that "
        "asks a prefill which was restarted since for a room that nobody will open waits for 300 s as well"
    ),
    safe_because=(
        "a worker is gone only once its kernel has closed the connection that is kept to it and refused two more; a "
        "room is only ever failed, through SGLang's own conclude_failure, which records the first reason, never "
        "revives one and frees nothing: the scheduler's next poll ends the request as it ends any failed one; decode "
        "workers are told by SGLang's own status message, which one that does not have the room drops"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="prefill fails the requests of a decode worker that is gone by itself",
    hooks=(
        Hook(f"{_PREFILL}.PrefillBootstrapQueue._init_kv_manager", "after", "serving.peers.watch:start"),
        Hook(f"{_COMMON}.CommonKVSender._check_bootstrap_timeout", "after", "serving.peers.watch:gave_up"),
    ),
    upstream=(
        Upstream(_PREFILL, "PrefillBootstrapQueue._init_kv_manager", ("51083c2e7cf2",)),
        Upstream(_COMMON, "CommonKVManager.conclude_transfer", ("e051408f69ea",)),
        Upstream(_COMMON, "CommonKVManager.conclude_failure", ("341fd988d2e7",)),
        Upstream(_COMMON, "CommonKVManager.update_status", ("86bf72997247",)),
        Upstream(_NIXL, "TransferInfo", ("4fd84b4a79df",)),
        Upstream(_NIXL, "KVArgsRegisterInfo", ("ff04d25583d4",)),
        Upstream(_NIXL, "NixlKVManager._add_remote_peer", ("e235a6badc2a",)),
        Upstream(_MOONCAKE, "TransferInfo", ("dbd2fb297316",)),
        Upstream(_MOONCAKE, "KVArgsRegisterInfo", ("76260434ecf4",)),
        Upstream(_MOONCAKE, "MooncakeKVManager._publish_peer_registration", ("bfe10924a2aa",)),
        Upstream("sglang.srt.disaggregation.pp_consensus_store", "PPConsensusStore", ("c160fb6b2ce3",)),
        Upstream(_COMMON, "CommonKVManager.send_kv_status_message", ("45d527037087",)),
        Upstream(_COMMON, "CommonKVManager.apply_prefill_status", ("4bb2dea1ec5f",)),
        Upstream(_COMMON, "CommonKVSender._check_bootstrap_timeout", ("942c7a28f450",)),
        Upstream(
            "sglang.srt.disaggregation.decode", "DecodePreallocQueue._update_handshake_waiters", ("717bcd0fcf6f",)
        ),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream(_COMMON, "CommonKVManager.record_failure", ("c882f96eeec7",)),
    ),
    relies_on=("decode-is-told",),
    # Without it a fault takes longer to show at the client; everything else is as it was.
    required=False,
)
