"""The entry point by which SGLang loads this package into each of its processes.

SGLang only logs an exception of a plugin and goes on without it. What an engine cannot do without is therefore
checked here, and a lack ends the process with one sentence (SystemExit is not an Exception).
"""

import os
import pkgutil
from collections.abc import Callable

from serving.untyped import Untyped

registered = False
"""Whether SGLang has called `register` in this process."""


def register() -> None:
    """Register the hooks that this engine needs; called by SGLang in every process of an engine.

    Raises:
        SystemExit: the engine runs without a GPU, and its SGLang lacks a function that must be changed for that.
    """
    global registered
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from serving.cpu import host_memory, leftovers

        _after(host_memory.KV_CLASS, host_memory.for_host_memory)
        _after(leftovers.LOAD_FILE, leftovers.in_temporary_directory)
    registered = True


def _after(target: str, hook: Callable[..., Untyped]) -> None:
    """Have `hook` called with the result and the arguments of `target`; what it returns, if not None, is the result."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise SystemExit(
            f"dsv4: {target} cannot be hooked ({error}), which an engine without a GPU needs: "
            "the CPU engine is made for SGLang 0.5.23"
        ) from error
    HookRegistry.register(target, hook, HookType.AFTER)
