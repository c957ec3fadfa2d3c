"""What must be true of a host before anything is started. Pure checks on facts; the caller reads and decides.

What is wrong in the profile for this host (a NUMA node, a GPU, a model path that is not there) is a usage error; what
the host's present state forbids (a port taken, too little memory) is a refusal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsv4ctl.facts import GpuFact, HostFacts
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.procfs import Listener
from dsv4ctl.profile.gpus import is_gpu
from dsv4ctl.stack import ModelSource, Stack, Worker

_GIB = 1024**3
DISK_NEEDED_BYTES = 256 * 1024**2
"""For logs and records of a stack."""

# Beside the weights each engine needs its runtime: 0.6 GB resident was measured for a worker on the CPU profile.
_ENGINE_OVERHEAD_BYTES = 600 * 1024**2


@dataclass(frozen=True)
class Owner:
    """Who holds a port, as far as we may see."""

    pid: int | None
    command: str | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that we may not look at (it belongs to another user)"
        return f"pid {self.pid} ({self.command or 'no command line'})"


def check_ports(
    workers: Iterable[Worker],
    listeners: Iterable[Listener],
    commands: Mapping[int, str],
    units: Mapping[int, str] | None = None,
) -> tuple[Finding, ...]:
    """PORT_TAKEN for each port of `workers` (all on one host) that somebody holds. By pid: `commands` has the command,
    `units` the unit of ours that it says it is."""
    taken = {listener.port: listener for listener in listeners}
    findings: list[Finding] = []
    for worker in workers:
        for purpose, port in worker.ports.items():
            listener = taken.get(port)
            if listener is None:
                continue
            owner = Owner(listener.pid, commands.get(listener.pid) if listener.pid is not None else None)
            unit = (units or {}).get(owner.pid) if owner.pid is not None else None
            remedy = "end that process if it is yours, or give the worker another port in the profile"
            if unit is not None:
                remedy = f"it says that it is {unit}: end that stack with `dsv4ctl stop`, or take other ports"
            findings.append(
                Finding(
                    "PORT_TAKEN",
                    Severity.ERROR,
                    f"port {port} on {worker.host}, the {purpose} port of {worker.name}, is held by {owner}",
                    remedy,
                    {
                        "host": worker.host,
                        "port": port,
                        "worker": worker.name,
                        "pid": owner.pid,
                        "command": owner.command,
                    },
                )
            )
    return tuple(findings)


def check_engine(host: str, python: str, wanted: str, facts: HostFacts) -> tuple[Finding, ...]:
    """The interpreter has SGLang, and the version that the profile was tested with."""
    findings: list[Finding] = []
    found = facts.packages.get("sglang")
    if found is None:
        findings.append(
            Finding(
                "ENGINE_MISSING",
                Severity.ERROR,
                f"the interpreter {python} on {host} has no sglang",
                "install the engine there (`pip install 'dsv4ctl[serving]'`), or set engine.python in the profile",
                {"host": host, "python": python},
            )
        )
    elif found != wanted:
        findings.append(
            Finding(
                "ENGINE_VERSION_DIFFERS",
                Severity.WARNING,
                f"{host} has sglang {found}, and the profile was tested with {wanted}",
                "expect flags and faults of the other version, or install the tested one",
                {"host": host, "found": found, "tested": wanted},
            )
        )
    return tuple(findings)


def check_strays(host: str, strays: Mapping[int, str]) -> tuple[Finding, ...]:
    """STRAY_PROCESSES for processes that carry our mark and that no record and no supervisor knows.

    They are what a deleted state directory leaves. `strays` is pid -> unit. They are told, never touched.
    """
    if not strays:
        return ()
    pids = " ".join(str(pid) for pid in sorted(strays))
    return (
        Finding(
            "STRAY_PROCESSES",
            Severity.ERROR,
            f"{host} runs {', '.join(sorted(set(strays.values())))}, of which this state directory knows nothing: "
            f"pid {pids.replace(' ', ', ')}",
            "if another state directory (XDG_STATE_HOME) has them, use that; if theirs was deleted, end them with: "
            f"kill {pids}",
            {"host": host, "pids": pids},
        ),
    )


def check_numactl(host: str, workers: Iterable[Worker], facts: HostFacts) -> tuple[Finding, ...]:
    """NUMACTL_MISSING when a worker is bound to a node and the host cannot bind."""
    bound = [worker.name for worker in workers if worker.numa_node is not None]
    if not bound or facts.has_numactl:
        return ()
    return (
        Finding(
            "NUMACTL_MISSING",
            Severity.ERROR,
            f"{host} has no numactl, and {', '.join(bound)} must be bound to a NUMA node",
            "install the numactl package on that host, or take numa_node out of the profile",
            {"host": host},
        ),
    )


def gpus_changed(host: str, workers: Iterable[Worker], there: Iterable[GpuFact]) -> str | None:
    """How a sentence reads when a worker's GPUs are no longer what they were when the plan was made, or could not be
    looked at then; None when the plan holds."""
    now = {gpu.index: gpu.pci_bus_id for gpu in there}
    for worker in workers:
        if worker.unresolved:
            return f"the GPUs of {worker.name} on {host} could not be looked at when the plan was made"
        for card in worker.cards:
            if now.get(card.index) != card.pci_bus_id:
                found = now.get(card.index, "gone")
                return f"GPU {card.index} on {host} was {card.pci_bus_id} when the plan was made, and is {found} now"
    return None


def check_model(source: ModelSource, facts: HostFacts) -> str | None:
    """Why the model cannot be served from where the profile says, or None. A generated model is made later."""
    if source.make is not None:
        return None
    if not facts.model_directory:
        return f"there is no directory {source.path} on {source.host}"
    if not facts.model_config:
        return f"{source.path} on {source.host} has no config.json, so it is no model"
    return None


def check_memory(stack: Stack, host: str, facts: HostFacts, size_bytes: int | None) -> tuple[Finding, ...]:
    """MODEL_TOO_LARGE when the engines of this host cannot all hold the model, said before anything is loaded.

    `size_bytes` is what the profile states, else what the files weigh. On GPUs the weights are spread over a worker's
    own cards; without GPUs every worker keeps its copy in memory.
    """
    size = size_bytes or facts.model_bytes
    if not size:
        return ()
    engines = [worker for worker in stack.engines if worker.host == host]
    findings: list[Finding] = []
    for worker in engines:
        if not worker.gpus:
            continue
        own = [known for known in facts.gpus if any(is_gpu(gpu, known) for gpu in worker.gpus)]
        total = sum(gpu.memory_mib for gpu in own) * 1024**2
        if len(own) == len(worker.gpus) and size > total:
            findings.append(_too_large(worker.name, host, size, total, f"its {len(own)} GPUs have"))
    unbound = [worker.name for worker in engines if not worker.gpus]
    if unbound and facts.memory_available_bytes is not None:
        needed = len(unbound) * (size + _ENGINE_OVERHEAD_BYTES)
        if needed > facts.memory_available_bytes:
            findings.append(
                _too_large(", ".join(unbound), host, needed, facts.memory_available_bytes, "the host has free")
            )
    return tuple(findings)


def check_disk(host: str, state_root: str, facts: HostFacts) -> tuple[Finding, ...]:
    """DISK_LOW when logs and records would not fit."""
    free = facts.disk_free_bytes
    if free is None or free >= DISK_NEEDED_BYTES:
        return ()
    return (
        Finding(
            "DISK_LOW",
            Severity.ERROR,
            f"{host} has {free // 1024**2} MiB free where {state_root} is; logs and records need "
            f"{DISK_NEEDED_BYTES // 1024**2} MiB",
            "free some space, or set XDG_STATE_HOME (or the host's state_dir in the profile) to a larger disk",
            {"host": host, "free_bytes": free, "needed_bytes": DISK_NEEDED_BYTES},
        ),
    )


def _too_large(who: str, host: str, needed: int, there: int, where: str) -> Finding:
    return Finding(
        "MODEL_TOO_LARGE",
        Severity.ERROR,
        f"{who} on {host} needs {needed / _GIB:.1f} GiB for the model, and {where} {there / _GIB:.1f} GiB",
        "serve a smaller model, give the worker more GPUs, or free memory on the host",
        {"host": host, "needed_bytes": needed, "available_bytes": there},
    )
