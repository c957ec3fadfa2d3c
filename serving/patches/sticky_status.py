"""A room that has failed or succeeded stays so, and one that was cleared stays away."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="sticky-status",
    defect=(
        "the status of a room is read, chosen and written by the scheduler, the bootstrap thread and the transfer "
        "workers without a lock: a worker that read the room before it was failed or cleared writes Transferring or "
        "Success over that, and goes on writing into pages that decode has given to somebody else. Up to 0.5.19 this "
        "needs no race: max(Failed=0, Transferring) revives a failed room (with NIXL only on 0.5.15, which has no "
        "check of its own), and any late status brings a cleared room back. On every version a late Failed replaces "
        "Success"
    ),
    safe_because=(
        "only writes that the engine itself refuses when nothing is in between are refused, and Failed after "
        "Success: the KV has arrived by then, and a sender or receiver that was aborted remembers that itself, in its "
        "conclude_state, and says so whatever its room says (but for NIXL's sender on 0.5.15, which then ends as the "
        "finished request that it is). Reads cost what they did"
    ),
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="update_status and clear() share a lock from reading to writing, and Failed and Success stay",
    hooks=(
        Hook(
            "sglang.srt.disaggregation.common.conn.CommonKVManager.__init__",
            "after",
            "serving.transfer.statuses:keep_statuses",
        ),
    ),
    upstream=(
        Upstream(
            "sglang.srt.disaggregation.common.conn",
            "CommonKVManager.__init__",
            (
                "7522ac0eee26",
                "4537d92a7b3d",
                "568c510f6692",
                "20b06beccad8",
                "089da4ff9695",
                "2070f28f7037",
                "406105d6d57f",
                "fe9fddb5f3cf",
                "e4979202948a",
            ),
        ),
        Upstream(
            "sglang.srt.disaggregation.common.conn",
            "CommonKVManager.update_status",
            ("3a14b450f48f", "c03148d8a791", "86bf72997247"),
        ),
        Upstream("sglang.srt.disaggregation.base.conn", "KVPoll", ("f187393df73c",)),
        Upstream(
            "sglang.srt.disaggregation.pp_consensus_store", "PPConsensusStore", ("c160fb6b2ce3",), versions=">=0.5.22"
        ),
    ),
)
