"""The threads by which prefill and decode hear from each other outlive a message that they cannot deal with."""

from serving.patches.patch import Hook, Patch, Upstream

_COMMON = "sglang.srt.disaggregation.common.conn"
_MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"
_NIXL = "sglang.srt.disaggregation.nixl.conn"

PATCH = Patch(
    name="control-threads",
    defect=(
        "prefill's thread that waits for decode (NIXL and Mooncake), Mooncake's that waits for prefill, and decode's "
        "heartbeats end at the first exception, for good: foreign traffic on their open port, a message of another "
        "version, a peer that cannot be registered, or a room that another thread clears between two looks at it. "
        "From then on no request is bootstrapped, or none is ever seen to end, while every health check stays green"
    ),
    safe_because=(
        "the loop is SGLang's own and keeps nothing between two messages; it is entered again, and only if a message "
        "was taken since, so a closed socket still ends it. The message is logged with its first bytes and dropped: "
        "its request ends by SGLang's own time limits, as it does now"
    ),
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="SGLang catches exceptions inside these loops, one message at a time",
    hooks=(
        Hook(f"{_NIXL}.NixlKVManager._start_bootstrap_thread", "around", "serving.transfer.threads:started_to_last"),
        Hook(
            f"{_MOONCAKE}.MooncakeKVManager.start_prefill_thread", "around", "serving.transfer.threads:started_to_last"
        ),
        Hook(
            f"{_MOONCAKE}.MooncakeKVManager.start_decode_thread", "around", "serving.transfer.threads:started_to_last"
        ),
        Hook(
            f"{_COMMON}.CommonKVManager._start_heartbeat_checker_thread",
            "around",
            "serving.transfer.threads:paced_to_last",
        ),
    ),
    upstream=(
        Upstream(
            _NIXL,
            "NixlKVManager._start_bootstrap_thread",
            ("7c6cfc32c38f", "8e663b56a48f", "0abba257fcbc", "959081d6f9e7"),
        ),
        Upstream(
            _MOONCAKE,
            "MooncakeKVManager.start_prefill_thread",
            (
                "a92d53ca0842",
                "4a93fdf604bd",
                "fa87143ec8da",
                "147179df8d7a",
                "68145e43e50c",
                "2fc4ad1ecc94",
                "a07c9e6347f1",
            ),
        ),
        Upstream(
            _MOONCAKE,
            "MooncakeKVManager.start_decode_thread",
            (
                "f20c3cb0dc09",
                "82c60c4d6d97",
                "419d1a9a4a45",
                "f95c22f4d12c",
                "7375cd443a6c",
                "d8d280b7e73d",
                "100afbe13e4b",
            ),
        ),
        Upstream(
            _COMMON, "CommonKVManager._start_heartbeat_checker_thread", ("eff192cc8568", "b5b52dc00d72", "02ebd94b4fef")
        ),
    ),
)
