"""The entry point by which SGLang loads this package into each of its processes.

SGLang only logs an exception of a plugin and goes on without it. What an engine cannot do without is therefore
checked here, and a lack ends the process with one sentence (SystemExit is not an Exception).
"""

import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence

from serving.untyped import Untyped

registered = False
"""Whether SGLang has called `register` in this process."""


def register() -> None:
    """Register the hooks that this engine needs; called by SGLang in every process of an engine.

    Raises:
        SystemExit: the engine must not run as it is set up: a hazard, a required patch that FAILED, a setting of ours
            that means nothing, a CPU engine without what it needs, or an error in this very package.
    """
    global registered
    try:
        _register()
    except Exception as error:
        raise SystemExit(
            f"dsv4: error: the plugin of this package cannot do its work ({type(error).__name__}: {error}); "
            "an engine without it has SGLang's own defects, and runs with SGLANG_PLUGINS=none"
        ) from error
    registered = True


def _register() -> None:
    from serving import knobs
    from serving.patches import registry
    from serving.settings import BadSetting

    try:
        knobs.check_ours(os.environ)
        _look_for_hazards(sys.argv[1:])
        registry.apply(os.environ, registry.discover())
    except BadSetting as error:
        raise SystemExit(f"dsv4: error: {error}") from None
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from serving.cpu import host_memory, leftovers

        _after(host_memory.KV_CLASS, host_memory.for_host_memory)
        _after(leftovers.LOAD_FILE, leftovers.in_temporary_directory)


_said: set[str] = set()
"""The warnings that this process has written already."""


def look_at_configuration(server_args: Untyped) -> None:
    """Before SGLang checks the arguments that an engine is to start with, wherever they come from: hazards again.

    Raises:
        SystemExit: the engine must not run with them.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    from serving.hazards import arguments_of

    _look_for_hazards(arguments_of(resolving_view(server_args)))


def _look_for_hazards(arguments: Sequence[str]) -> None:
    from serving import hazards

    engine = hazards.Engine(os.environ, arguments)
    found = hazards.present(engine)
    for hazard in found:
        sentence = hazards.sentence(hazard, engine)
        if hazard.severity == "refuse":
            raise SystemExit(f"dsv4: error: {sentence}")
        _warn(f"dsv4 hazard {hazard.name}: {sentence}")
    for note in hazards.misread(engine, found):
        _warn(f"dsv4 note: {note}")


def _warn(text: str) -> None:
    """Once, and not in the children of an engine, which would all say the same."""
    if multiprocessing.parent_process() is None and text not in _said:
        _said.add(text)
        sys.stderr.write(f"{text}\n")


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
