"""How an engine ends: at once when it has released everything, and leaving nothing outside its temporary directory."""

import os
import tempfile
from typing import Any

SCHEDULER_RELEASED = "sglang.srt.managers.scheduler.abort_distributed_environment"
"""The last thing that a scheduler does before its process ends."""

LOAD_FILE = "sglang.srt.managers.load_snapshot.shm_path_for"
"""Where a scheduler publishes its load for the HTTP server of its engine."""


def exit_now(*_: Any) -> None:
    """End the scheduler's process without waiting for its threads.

    The prefill side of NIXL starts worker threads that are not daemons and never end, so the interpreter would wait
    for them, until SGLang kills the process after 15 s and says that it had not released its resources.
    """
    os._exit(0)


def in_temporary_directory(path: str, *_: Any) -> str:
    """The load file's place: SGLang never removes it, and the temporary directory is the starter's to remove."""
    return os.path.join(tempfile.gettempdir(), os.path.basename(path))  # noqa: PTH118, PTH119  SGLang wants a str
