"""KV in host memory: what the transfer backends of SGLang assume about a GPU, corrected for an engine without one.

NIXL registers KV buffers as VRAM unless it is told otherwise, and nothing in SGLang tells it; its progress thread asks
UCX for news without a pause, which takes one whole core of an engine at rest. Mooncake's sender pins host memory for
its indices, which needs CUDA; SGLang has a path without, taken by senders that do not claim support.
"""

import fcntl
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KV_CLASS = "sglang.srt.disaggregation.utils.get_kv_class"
"""The one function through which SGLang's prefill and decode get the classes of a transfer backend."""

PROGRESS_DELAY_US = 1000


def for_host_memory(chosen: Any, transfer_backend: Any, class_type: Any) -> Any:
    """The class to use instead of `chosen`; None leaves it."""
    kind = (transfer_backend.name, class_type.name)
    if kind == ("NIXL", "MANAGER"):
        return nixl_manager_in_host_memory(chosen)
    if kind == ("MOONCAKE", "SENDER"):
        return type(chosen.__name__, (chosen,), {"supports_host_tensor_indices": False})
    return None


def nixl_manager_in_host_memory(manager: Any) -> Any:
    """A NIXL KV manager class that registers its buffers as host memory, one agent of this machine at a time."""

    let_the_progress_thread_sleep()

    def initialise(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        args.kv_data_mem_kinds = ["DRAM"] * len(args.kv_data_ptrs)
        with one_agent_at_a_time():
            manager.__init__(self, args, *rest, **named)

    return type(manager.__name__, (manager,), {"__init__": initialise})


def let_the_progress_thread_sleep() -> None:
    """Have NIXL agents created from now on wait for an event of UCX, instead of asking for one without a pause.

    The agent's setting is called pthrDelay, in microseconds. NIXL's Python API sets it to 0 and offers no way to say
    otherwise. With anything above, an agent at rest uses 1 % of a core instead of 95 %, and a transfer takes as long as
    before (measured: 1 KB in 1 ms, 32 MB in 11 to 25 ms).
    """
    bindings = importlib.import_module("nixl._api").nixlBind
    create = bindings.nixlAgent
    if isinstance(create, type):

        def create_with_delay(name: str, config: Any) -> Any:
            config.pthrDelay = PROGRESS_DELAY_US
            return create(name, config)

        bindings.nixlAgent = create_with_delay


@contextmanager
def one_agent_at_a_time() -> Iterator[None]:
    """Let one engine of this machine create its UCX agent at a time: two that did so at once have hung (UCX 1.20.0).

    The lock is on the directory of this file, so nothing is left behind. Whoever holds it is bounded by SGLang's own
    deadline on creating a backend (SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT).
    """
    directory = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
