"""Who ends all requests of an engine ends them with an error, and not with half an answer that looks whole."""

from serving.patches.patch import Hook, Patch, Upstream

PATCH = Patch(
    name="abort-is-an-error",
    defect=(
        "a request that is running when all are aborted (/abort_request with abort_all, before a restart) is answered "
        "with status 200 and the text it had so far; only its finish reason, abort, tells it from a whole answer"
    ),
    safe_because=(
        "the abort carries the message and status 503 that SGLang has for one, and its own code makes the answer of "
        "them; aborts of single requests stay as they are, and so do those of a pause, whose half answers are wanted"
    ),
    needed_by=">=0.5.15",
    made_for="==0.5.23",
    delete_when="SGLang answers a request that an operator aborted with an error",
    hooks=(
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
            "before",
            "serving.requests:abort_is_an_error",
        ),
        Hook(
            "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_abort_req",
            "before",
            "serving.requests:unexplained_abort",
        ),
    ),
    upstream=(
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager._dispatch_to_scheduler", ("0a4e290cb91e",)),
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager.abort_request", ("b11f8e8cdd5b",)),
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager._handle_abort_req", ("1f32dd8112b8",)),
        Upstream("sglang.srt.managers.tokenizer_manager", "TokenizerManager.pause_generation", ("f2fb79b27427",)),
        Upstream("sglang.srt.managers.scheduler", "Scheduler.abort_request", ("c1f592343634",)),
        Upstream("sglang.srt.managers.io_struct", "AbortReq", ("b75ede2ab89c",)),
    ),
    required=False,
)
