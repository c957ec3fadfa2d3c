"""The entry point by which SGLang loads this package into each of its processes.

SGLang only logs an exception of a plugin and goes on without it. What an engine cannot do without is therefore
checked here, and a lack ends the process with one sentence (SystemExit is not an Exception).
"""

import os


def register() -> None:
    """Register the hooks that this engine needs; called by SGLang in every process of an engine.

    Raises:
        SystemExit: the engine runs without a GPU, and its SGLang lacks what the CPU hooks build on.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from serving.cpu import host_memory

        host_memory.register()
