"""SGLang's own server on a machine without a GPU, started fast.

    python -m serving.cpu.engine <the arguments of sglang.launch_server>

The engine, its arguments and its processes are SGLang's. What differs is how they start: everything is imported once,
and the scheduler and detokenizer processes are forked from that instead of being spawned to import it all again. That
is possible because nothing here holds a CUDA context.
"""

import gc
import importlib
import multiprocessing
import os
import sys
import time
from pathlib import Path

from serving import plugin
from serving.cpu import verbs

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # One thread: OpenMP's helpers spin between two kernels and would take the cores from the other processes.
    "OMP_NUM_THREADS": "1",
    # KV and its handshake stay on this machine.
    "SGLANG_HOST_IP": "127.0.0.1",
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp",
    # Decode forgets what it knows of a prefill worker after two missed heartbeats, of 5 s each by default. A worker
    # that is back before then stays known by its old ports, and every request hangs; here one is back after 10 s.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    # Without it SGLang imports all of its models to find the one that it serves.
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "serving.cpu.models",
    # SGLang compiles a function for TP > 1, which needs a C++ compiler and takes longer than it can ever save here.
    "TORCHDYNAMO_DISABLE": "1",
}
"""Set where the environment does not say otherwise."""

IMPORTS = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.llama",
)
"""What the children of the engine import between them."""


def import_once() -> None:
    """Import what all processes of the engine need, with the garbage collector out of the way.

    Nothing imported here becomes garbage, and `gc.freeze` keeps the forked children from touching, and so copying,
    the pages it lies on.
    """
    gc.disable()
    for name in IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def fork_instead_of_spawn() -> None:
    """Have SGLang start its processes by fork; it chooses spawn itself, in the function that is hooked."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def choose_fork(*_: object) -> None:
        multiprocessing.set_start_method("fork", force=True)

    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", choose_fork, HookType.AFTER)


def main(arguments: list[str]) -> None:
    """Run the server until it ends."""
    began = time.monotonic()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Last on the path: a real package wins over its stand-in.
    sys.path.append(str(Path(__file__).parent / "standins"))
    if "mooncake" in arguments:
        verbs.provide()
    import_once()
    sys.stderr.write(f"imports done in {time.monotonic() - began:.1f} s\n")
    fork_instead_of_spawn()

    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    if not plugin.registered:
        raise SystemExit(
            "dsv4: SGLang did not load the plugin of this package, without which KV cannot be moved on a CPU: "
            "install it into this environment (pip install --no-deps --editable .), and let SGLANG_PLUGINS name it"
        )
    server_args = prepare_server_args(arguments)
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
