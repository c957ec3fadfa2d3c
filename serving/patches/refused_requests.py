"""A request that a disaggregated engine cannot serve is refused, and neither hangs nor ends the engine."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="refused-requests",
    defect=(
        "with n above 1 all samples of a prompt wait for their KV in one bootstrap room, which is used up by the "
        "first: the client hangs until it gives up, and nothing is inflight meanwhile; and an empty prompt, where "
        "the tokenizer adds no token, ends prefill's scheduler"
    ),
    safe_because="such a request gets status 400 and a sentence before it is sent to a scheduler; no other is touched",
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang gives each sample a room, or refuses them, and refuses an empty prompt",
    hooks=(
        Hook(
            "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments",
            "after",
            "serving.requests:several_samples",
        ),
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
            "before",
            "serving.requests:empty_prompt",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.managers.io_struct", "GenerateReqInput.normalize_batch_and_arguments", ("e6c3216be96e",)),
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager._validate_one_request", ("c5956bbf19a5",)),
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager._handle_batch_request", ("6bfe5a373f92",)),
    ),
    required=False,
)
