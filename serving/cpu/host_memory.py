"""KV in host memory: what the transfer backends of SGLang assume about a GPU, corrected for an engine without one.

NIXL registers KV buffers as VRAM unless it is told otherwise, and nothing in SGLang tells it; its progress thread asks
UCX for news without a pause, which takes one whole core of an engine at rest. Mooncake's sender pins host memory for
its indices, which needs CUDA; SGLang has a path without, taken by senders that do not claim support.
"""

import fcntl
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.untyped import Untyped

KV_CLASS = "sglang.srt.disaggregation.utils.get_kv_class"
"""The one function through which SGLang's prefill and decode get the classes of a transfer backend."""

PROGRESS_DELAY_US = 1000


def for_host_memory(chosen: Untyped, transfer_backend: Untyped, class_type: Untyped) -> Untyped:
    """The class to use instead of `chosen`; None leaves it."""
    kind = (transfer_backend.name, class_type.name)
    if kind == ("NIXL", "MANAGER"):
        prepare_nixl()
        return nixl_manager_in_host_memory(chosen)
    if kind == ("MOONCAKE", "SENDER"):
        return type(chosen.__name__, (chosen,), {"supports_host_tensor_indices": False})
    return None


def nixl_manager_in_host_memory(manager: Untyped) -> Untyped:
    """A NIXL KV manager class that registers its buffers as host memory."""

    def initialise(self: Untyped, args: Untyped, *rest: Untyped, **named: Untyped) -> None:
        args.kv_data_mem_kinds = ["DRAM"] * len(args.kv_data_ptrs)
        manager.__init__(self, args, *rest, **named)

    return type(manager.__name__, (manager,), {"__init__": initialise})


@functools.cache
def prepare_nixl() -> None:
    """Have NIXL sleep when there is nothing to do, start UCX one process at a time, and end with its process."""
    api = importlib.import_module("nixl._api")
    let_agents_sleep(api)
    create_backend: Callable[..., Untyped] = api.nixl_agent.create_backend

    def create_backend_in_turn(*arguments: Untyped) -> Untyped:
        with one_process_at_a_time():
            return create_backend(*arguments)

    api.nixl_agent.create_backend = create_backend_in_turn
    vars(importlib.import_module("sglang.srt.disaggregation.nixl.conn"))["threading"] = DaemonThreads()


def let_agents_sleep(api: Untyped) -> None:
    """Have every agent that is made through this module (NIXL's Python API) sleep when there is nothing to do.

    The agent's setting pthrDelay is in microseconds; NIXL's Python API sets it to 0 and offers no way to say
    otherwise. With anything above, the progress thread waits for an event of UCX: an agent at rest uses 1 % of a core
    instead of 95 %, and a transfer takes as long as before (1 KB in 1 ms, 32 MB in 11 to 25 ms, either way).
    """
    create_agent: Callable[[str, Untyped], Untyped] = api.nixlBind.nixlAgent

    def create_sleeping_agent(name: str, config: Untyped) -> Untyped:
        config.pthrDelay = PROGRESS_DELAY_US
        return create_agent(name, config)

    api.nixlBind.nixlAgent = create_sleeping_agent


class DaemonThreads:
    """The module `threading` to SGLang's NIXL code, with threads that do not outlive the work.

    Its prefill side starts threads that never end and are not daemons. The scheduler's process then waits for them
    after it has released everything, until SGLang kills it 15 s later and says that it had not.
    """

    Thread = functools.partial(threading.Thread, daemon=True)

    def __getattr__(self, name: str) -> Untyped:
        return getattr(threading, name)


@contextmanager
def one_process_at_a_time() -> Iterator[None]:
    """Let one engine of this checkout start UCX at a time: two that did so at once have hung (UCX 1.20.0).

    It takes half a second. The lock is on the directory of this file, so nothing is left behind. Whoever holds it is
    bounded by SGLang's own deadline on creating a backend (SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT), and so is
    whoever waits.
    """
    directory = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
