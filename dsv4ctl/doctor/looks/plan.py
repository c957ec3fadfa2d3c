"""What the planned workers are given: flags, environment, transports of UCX. Nothing of the host is looked at here."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.engine_keys import flag_of
from dsv4ctl.profile.schema import Role
from dsv4ctl.stack import Worker

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""PyTorch reads both; the second is the newer name."""

LOCAL_TRANSPORTS = frozenset(
    {"self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy"}
)
"""UCX's names for what copies within one machine and cannot tell that the other side has died."""

RDMA_TRANSPORTS = frozenset(
    {"ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "ud", "ud_v", "ud_x", "ud_verbs", "ud_mlx5", "dc", "dc_x"}
    | {"dc_mlx5", "srd", "gga", "gga_mlx5"}
)
"""UCX's names for what goes over InfiniBand or RoCE (ucp_context.c, ucp_tl_aliases)."""

_ALIASES = {
    "cuda": frozenset({"cuda_copy", "cuda_ipc", "gdr_copy"}),
    "all": frozenset({"cuda_copy", "cuda_ipc", "gdr_copy", "tcp"}),
}


def flag(worker: Worker, *names: str) -> str | None:
    """The value of a flag under any of its names (written without dashes); None where it is not given."""
    return next((value for name in names if (value := flag_of(worker.argv, f"--{name}")) is not None), None)


def number(worker: Worker, default: int, *names: str) -> int:
    """A flag that is a number; `default` where it is not given, or is none (the engine then refuses it)."""
    value = flag(worker, *names)
    return int(value) if value is not None and value.isdecimal() else default


def ranks(worker: Worker) -> int:
    """How many schedulers a worker starts on its host, each with a GPU of its own.

    SGLang 0.5.23 has tp-size for each stage of pp-size, spread over nnodes; data parallelism of attention stays within
    tp-size (arg_groups/fields/parallel.py).
    """
    whole = number(worker, 1, "tp-size", "tensor-parallel-size") * number(
        worker, 1, "pp-size", "pipeline-parallel-size"
    )
    return -(-whole // max(1, number(worker, 1, "nnodes")))


def on_gpus(worker: Worker) -> bool:
    """Whether a worker runs on GPUs: it does unless it is told to run on the CPU."""
    return worker.role != "router" and flag(worker, "device") != "cpu"


def gpu_workers(patient: Patient) -> tuple[Worker, ...]:
    """The planned engines that run on GPUs."""
    return tuple(worker for worker in patient.engines if on_gpus(worker))


def wants_gpus(patient: Patient) -> bool:
    """Whether the plan has an engine on GPUs for this host."""
    return bool(gpu_workers(patient))


def moves_kv_by_ucx(worker: Worker) -> bool:
    """Whether a worker is half of a pair that moves KV by NIXL over UCX."""
    backend = worker.env.get("SGLANG_DISAGGREGATION_NIXL_BACKEND", "UCX")
    is_half = worker.role in {Role.PREFILL.value, Role.DECODE.value}
    return is_half and flag(worker, "disaggregation-transfer-backend") == "nixl" and backend == "UCX"


def ucx_workers(patient: Patient) -> tuple[Worker, ...]:
    """The planned engines that move KV by NIXL over UCX, on GPUs or not."""
    return tuple(worker for worker in patient.engines if moves_kv_by_ucx(worker))


def ucx_gpu_workers(patient: Patient) -> tuple[Worker, ...]:
    """Those of them that move it between GPUs."""
    return tuple(worker for worker in ucx_workers(patient) if on_gpus(worker))


def shares_gpu_memory(patient: Patient) -> bool:
    """Whether both halves of such a pair are on this host, so that KV can go from GPU to GPU by cuda_ipc."""
    return {Role.PREFILL.value, Role.DECODE.value} <= {worker.role for worker in ucx_gpu_workers(patient)}


def transports(worker: Worker) -> tuple[str, ...]:
    """UCX_TLS as a list of names, the kind of use after a colon left out; empty where UCX chooses for itself."""
    names = worker.env.get("UCX_TLS", "").split(",")
    return tuple(name.strip().removeprefix("\\").partition(":")[0].lower() for name in names if name.strip())


def may_use(worker: Worker, transport: str) -> bool:
    """Whether UCX_TLS leaves a transport to UCX. A list that begins with `^` names what is left out."""
    named = transports(worker)
    if not named:
        return True
    if named[0].startswith("^"):
        left_out = {name.removeprefix("^") for name in named}
        return transport not in _with_aliases(left_out)
    return transport in _with_aliases(set(named))


def expandable_segments(worker: Worker) -> str | None:
    """The variable that turns PyTorch's expandable segments on, or None."""
    for name in ALLOCATOR_VARIABLES:
        for option in worker.env.get(name, "").split(","):
            key, _, value = option.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() == "true":
                return name
    return None


def library_paths(worker: Worker) -> Iterator[tuple[str, str]]:
    """Directories that a worker is told to take libraries from, and files that it is told to load first: the variable,
    and the absolute path."""
    for name, separators in (("LD_LIBRARY_PATH", ":;"), ("LD_PRELOAD", ": ")):
        text = worker.env.get(name, "")
        for separator in separators:
            text = text.replace(separator, "\0")
        yield from ((name, path) for path in text.split("\0") if path.startswith("/"))


def _with_aliases(names: set[str]) -> set[str]:
    return names.union(*(_ALIASES.get(name, frozenset()) for name in names))
