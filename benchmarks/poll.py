"""What our hooks cost a pass over prefill's inflight queue: patched against stock, in turns, in one process.

    python -m benchmarks.poll [--inflight 0,1,64,512] [--blocks N] [--json]

The pass is SGLang's own `process_disagg_prefill_inflight_queue`, the requests and their NIXL senders are SGLang's, and
they poll the status of their rooms in a real manager's table; the reductions go over real groups of one rank. What is
not real: the scheduler and the KV manager are made without their constructors, which would load a model and open
connections, and have only what a pass looks at. The hooks are all that this version needs, applied by SGLang itself;
in each turn of stock they are taken out again. The report goes to real metric files and a real load in shared memory.

Times are of the CPU of the thread; those of the wall stand beside them. Four turns (stock, patched, patched, stock)
make a block, and what the hooks add is looked at block by block, so that a machine that is busy for a while counts
little. Bars: with nothing inflight less than 2 us more, with 512 less than 2 % more (medians over the blocks).
With a patch named in SGLANG_DSV4_DISABLE_PATCHES it is the others that are measured.
"""

import argparse
import collections
import gc
import json
import os
import pkgutil
import random
import statistics
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.cpu import engine
from serving.cpu.tiny_model import VARIANTS, write_model
from serving.untyped import Untyped

INFLIGHT = (0, 1, 64, 512)
EMPTY_BAR_US = 2.0
FULL_BAR = 1.02
SAMPLE_US = 1000.0
"""How long the passes of one turn take together: far more than the clock's grain, less than a slice of the CPU."""
RESAMPLES = 1000
SEED = 20_260_101

Pass = Callable[[], object]


@dataclass(frozen=True)
class Place:
    """A name in the engine that leads to one function with our hooks and to another without."""

    owner: Untyped
    name: str
    stock: Untyped
    patched: Untyped


class Hooks:
    """All hooks that SGLang has applied, to be taken out and put in again."""

    def __init__(self) -> None:
        self._places = [place for target, hooks in applied().items() for place in _places(target, len(hooks))]

    def put_in(self) -> None:
        """The engine is patched."""
        for place in self._places:
            setattr(place.owner, place.name, place.patched)

    def take_out(self) -> None:
        """The engine is as it was shipped."""
        for place in self._places:
            setattr(place.owner, place.name, place.stock)


def applied() -> dict[str, list[tuple[object, Untyped, object]]]:
    """SGLang's own table of hooks: by target, those on it in their order, each the second of three."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks: dict[str, list[tuple[object, Untyped, object]]] = vars(HookRegistry)["_hooks"]
    return dict(hooks)


def _places(target: str, hooks: int) -> Iterator[Place]:
    """Where the engine holds this target: on its owner, and in each module that imported it by name."""
    path, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(path)
    patched: Untyped = vars(owner)[name]
    bound = type(patched) if isinstance(patched, staticmethod | classmethod) else None
    stock: Untyped = patched.__func__ if bound else patched
    for _ in range(hooks):
        stock = stock.__wrapped__
    yield Place(owner, name, bound(stock) if bound else stock, patched)
    for module in list(sys.modules.values()):
        for other, value in list(getattr(module, "__dict__", {}).items()):
            if value is patched and (module, other) != (owner, name):
                yield Place(module, other, stock, patched)


class Loads:
    """In place of the engine's inquirer of its load, which walks queues that are not here."""

    def get_loads(self) -> Untyped:
        """A real load."""
        from sglang.srt.managers.load_snapshot import DisaggregationMetrics, LoadSnapshot

        return LoadSnapshot(disaggregation=DisaggregationMetrics("prefill"))


class Prefill:
    """A prefill scheduler with as many requests inflight as it is told, all of them in Transferring."""

    def __init__(self, folder: Path) -> None:
        import torch.distributed as dist
        from sglang.launch_server import prepare_server_args
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.managers.load_snapshot import ShmLoadSnapshotWriter
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
        from sglang.srt.observability.scheduler_stage_metrics import SchedulerStageMetricsRecorder
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        write_model(folder / "model", VARIANTS["tiny"])
        arguments = prepare_server_args(
            [
                *("--model-path", str(folder / "model"), "--device", "cpu", "--dtype", "float32"),
                *("--attention-backend", "torch_native", "--enable-metrics", "--disaggregation-mode", "prefill"),
                *("--disaggregation-transfer-backend", "nixl"),
            ]
        )
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.manager = _manager()
        self._statuses = {True: self.manager.request_status}
        scheduler = self.scheduler = object.__new__(Scheduler)
        scheduler.disaggregation_mode = DisaggregationMode.PREFILL
        scheduler.attn_cp_cpu_group = dist.new_group([0], backend="gloo")
        scheduler.attn_tp_cpu_group = dist.new_group([0], backend="gloo")
        scheduler.pp_group = types.SimpleNamespace(world_size=1)
        scheduler.enable_priority_scheduling = False
        scheduler.enable_lora = False
        scheduler.enable_hierarchical_cache = False
        scheduler.server_args = arguments
        scheduler.init_metrics_collector()
        scheduler.scheduler_stage_metrics = SchedulerStageMetricsRecorder(enabled=True)
        scheduler.scheduler_stage_metrics.start(time.monotonic_ns())
        scheduler.load_snapshot_writer = ShmLoadSnapshotWriter(str(folder / "loads"), 1, 0)
        scheduler.load_inquirer = Loads()
        scheduler.output_streamer = SchedulerOutputStreamer(
            send_to_detokenizer=None,
            tree_cache=None,
            server_args=arguments,
            is_generation=True,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            disaggregation_mode=DisaggregationMode.PREFILL,
            enable_hicache_storage=lambda: False,
        )
        scheduler.disagg_prefill_inflight_queue = []
        _made("sglang.srt.managers.scheduler.Scheduler.init_disaggregation", scheduler)

    def hold(self, count: int) -> None:
        """From now on that many requests are inflight."""
        self.be_patched(True)
        self.manager.request_status.clear()
        queue = [self._request(room) for room in range(count)]
        self._statuses = {True: self.manager.request_status, False: dict(self.manager.request_status)}
        self.scheduler.disagg_prefill_inflight_queue = queue
        self.scheduler.dsv4_inflight.nothing_inflight()
        if queue:
            self.scheduler.dsv4_inflight.entered(queue)

    def be_patched(self, is_patched: bool) -> None:
        """The manager keeps the statuses as our hooks have it, or in the dict that SGLang made."""
        self.manager.request_status = self._statuses[is_patched]

    def one_pass(self) -> object:
        """SGLang's pass over the queue, with hooks or without."""
        return self.scheduler.process_disagg_prefill_inflight_queue()

    def refresh(self) -> None:
        """What the watchdog does besides, four times a second while anything is inflight: count and report."""
        self.scheduler.dsv4_inflight.entered([])

    def _request(self, room: int) -> Untyped:
        from sglang.srt.disaggregation.base import KVPoll
        from sglang.srt.disaggregation.nixl.conn import NixlKVSender
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        request = Req(f"request-{room}", "", [1, 2, 3], SamplingParams())
        request.bootstrap_host, request.bootstrap_room, request.pending_bootstrap = "127.0.0.1", room, False
        request.disagg_kv_sender = NixlKVSender(self.manager, "127.0.0.1:1", room)
        self.manager.update_status(room, KVPoll.Transferring)
        return request


def _manager() -> Untyped:
    """SGLang's NIXL manager with what the status of a room takes, and without an agent or a socket."""
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager

    manager = object.__new__(NixlKVManager)
    manager.request_status = {}
    manager.is_dummy_cp_rank = False
    manager.failure_records, manager.failure_lock = {}, threading.Lock()
    manager._staging_outstanding = collections.defaultdict(int)
    manager._deferred_ack_targets, manager._deferred_ack_poisoned_rooms = {}, set()
    _made("sglang.srt.disaggregation.common.conn.CommonKVManager.__init__", manager)
    return manager


def _made(target: str, instance: Untyped) -> None:
    """What our hooks do after the function of SGLang that made this, as SGLang calls them."""
    for _, hook, _ in applied().get(target, ()):
        hook(None, instance)


@dataclass(frozen=True)
class Figures:
    """Microseconds a pass: medians and quartiles over the blocks, and what the hooks add, with its range at 95 %."""

    inflight: int
    blocks: int
    passes_a_turn: int
    stock_us: float
    stock_quartiles_us: tuple[float, float]
    patched_us: float
    patched_quartiles_us: tuple[float, float]
    added_us: float
    added_range_us: tuple[float, float]
    ratio: float
    ratio_range: tuple[float, float]
    stock_wall_us: float
    patched_wall_us: float
    refresh_us: float

    @property
    def kept(self) -> bool:
        """Whether the bar for this many is kept; for numbers in between there is none."""
        if self.inflight == 0:
            return self.added_us < EMPTY_BAR_US
        return self.inflight < max(INFLIGHT) or self.ratio < FULL_BAR


def measure(prefill: Prefill, hooks: Hooks, inflight: int, blocks: int) -> Figures:
    """Take so many blocks of turns with this many requests inflight."""
    prefill.hold(inflight)
    passes = max(1, round(SAMPLE_US / max(_sample(prefill.one_pass, 50).cpu_us, 0.1)))
    stock: list[Sample] = []
    patched: list[Sample] = []
    with _without_collection():
        for turn in range(4 * blocks):
            is_patched = turn % 4 in (1, 2)
            (hooks.put_in if is_patched else hooks.take_out)()
            prefill.be_patched(is_patched)
            # What Python has learnt of the code is void after a switch.
            _sample(prefill.one_pass, 2)
            (patched if is_patched else stock).append(_sample(prefill.one_pass, passes))
        hooks.put_in()
        refresh = statistics.median(_sample(prefill.refresh, 20).cpu_us for _ in range(20))
    before, after = _by_block(stock), _by_block(patched)
    added = [late - early for early, late in zip(before, after, strict=True)]
    ratio = [late / early for early, late in zip(before, after, strict=True)]
    rng = random.Random(SEED)  # noqa: S311  resampling
    return Figures(
        inflight=inflight,
        blocks=blocks,
        passes_a_turn=passes,
        stock_us=statistics.median(before),
        stock_quartiles_us=_quartiles(before),
        patched_us=statistics.median(after),
        patched_quartiles_us=_quartiles(after),
        added_us=statistics.median(added),
        added_range_us=_range(added, rng),
        ratio=statistics.median(ratio),
        ratio_range=_range(ratio, rng),
        stock_wall_us=statistics.median(sample.wall_us for sample in stock),
        patched_wall_us=statistics.median(sample.wall_us for sample in patched),
        refresh_us=refresh,
    )


def _by_block(samples: Sequence["Sample"]) -> list[float]:
    return [(first.cpu_us + second.cpu_us) / 2 for first, second in zip(samples[::2], samples[1::2], strict=True)]


@dataclass(frozen=True)
class Sample:
    """What one of several passes took, in microseconds."""

    cpu_us: float
    wall_us: float


def _sample(work: Pass, passes: int) -> Sample:
    """Do `work` so many times."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    for _ in range(passes):
        work()
    cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    return Sample(cpu / 1000 / passes, wall / 1000 / passes)


@contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def _range(values: Sequence[float], rng: random.Random) -> tuple[float, float]:
    """Where the median is in 95 of 100 resamples."""
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-1 - RESAMPLES // 40]


def table(figures: Sequence[Figures]) -> Iterator[str]:
    """The figures for a person."""
    yield (
        f"{'inflight':>8} {'stock us':>22} {'patched us':>22} {'added us':>22} {'ratio':>22}"
        f" {'wall us':>17} {'refresh us':>11}"
    )
    for row in figures:
        stock = f"{row.stock_us:.2f} ({row.stock_quartiles_us[0]:.2f}-{row.stock_quartiles_us[1]:.2f})"
        patched = f"{row.patched_us:.2f} ({row.patched_quartiles_us[0]:.2f}-{row.patched_quartiles_us[1]:.2f})"
        added = f"{row.added_us:+.2f} ({row.added_range_us[0]:+.2f}..{row.added_range_us[1]:+.2f})"
        ratio = f"{row.ratio:.4f} ({row.ratio_range[0]:.4f}-{row.ratio_range[1]:.4f})"
        wall = f"{row.stock_wall_us:.2f}, {row.patched_wall_us:.2f}"
        line = f"{row.inflight:>8} {stock:>22} {patched:>22} {added:>22} {ratio:>22} {wall:>17} {row.refresh_us:>11.1f}"
        yield line if row.kept else f"{line}  over the bar"
    yield "a pass: median (quartiles); added, ratio: median over blocks (95 of 100 resamples); refresh: every 0.25 s"


def main(arguments: list[str]) -> int:
    """Measure and print; 0 if both bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poll", description=__doc__)
    parser.add_argument("--inflight", default=",".join(map(str, INFLIGHT)), help="how many requests, in turn")
    parser.add_argument("--blocks", type=int, default=400, help="of four turns, for each number of requests")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    counts = [int(count) for count in options.inflight.split(",")]
    for name, value in engine.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.path.append(str(Path(engine.__file__).parent / "standins"))
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from sglang.srt.plugins import load_plugins

        load_plugins()
        prefill, hooks = Prefill(Path(folder)), Hooks()
        figures = [measure(prefill, hooks, count, options.blocks) for count in counts]
        if options.json:
            rows = [asdict(row) | {"kept": row.kept} for row in figures]
            sys.stdout.write(json.dumps({"load_average": os.getloadavg()[0], "figures": rows}, indent=1) + "\n")
        else:
            sys.stdout.write("\n".join([*table(figures), f"load average {os.getloadavg()[0]:.1f}"]) + "\n")
    return int(not all(row.kept for row in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
