"""Which transfers a stack's KV takes, as data: every prefill worker's ranks to every decode worker's ranks, the plain
copies between the GPUs of a host, and why one of them cannot be tested. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.drift import planned_tail
from dsv4ctl.redaction import redact
from dsv4ctl.stack import UNIT_VARIABLE

if TYPE_CHECKING:
    from dsv4ctl.stack import Stack, Worker

CPU = "cpu"
LOOPBACK = "127.0.0.1"

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NIXL = "nixl"
_UNSAID_BACKEND = "mooncake"
"""What SGLang 0.5.23 takes where --disaggregation-transfer-backend is not given."""

# A process of the test is no worker: it has no unit, and no temporary directory that is made and removed with one.
_NOT_PASSED = frozenset({UNIT_VARIABLE, "TMPDIR"})
_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - they are refused
_LOOPBACKS = frozenset({LOOPBACK, "::1", "localhost"})


@dataclass(frozen=True)
class SidePlan:
    """One side of a test: a worker's interpreter, environment, binding and devices.

    `devices` has `cpu` or a CUDA index for each rank; `gpus` has the same as a person knows them, None on a CPU.
    """

    worker: str
    host: str
    binding: tuple[str, ...]
    python: str
    env: Mapping[str, str]
    devices: tuple[str, ...]
    gpus: tuple[str | None, ...]

    @property
    def on_gpus(self) -> bool:
        return CPU not in self.devices


@dataclass(frozen=True)
class Pairing:
    """A prefill worker and a decode worker. `address` is where the two sides meet, as the decode worker's host reaches
    it; `bootstrap_port` is prefill's own. `why_not` says why they cannot be tested, and is empty where they can."""

    source: SidePlan
    destination: SidePlan
    address: str
    bootstrap_port: int | None = None
    why_not: str = ""

    @property
    def name(self) -> str:
        return f"{self.source.worker} to {self.destination.worker}"

    @property
    def same_host(self) -> bool:
        return self.source.host == self.destination.host


@dataclass(frozen=True)
class CopyPlan:
    """Plain copies between the GPUs of one host that the stack's workers take. `gpus` are as a person knows them."""

    host: str
    python: str
    env: Mapping[str, str]
    gpus: tuple[str, ...]


def pairings(stack: "Stack") -> tuple[Pairing, ...]:
    """Every prefill worker with every decode worker; none for a stack without disaggregation."""
    sources = [worker for worker in stack.workers if worker.role == "prefill"]
    destinations = [worker for worker in stack.workers if worker.role == "decode"]
    return tuple(_pairing(source, destination) for source in sources for destination in destinations)


def copies(stack: "Stack") -> tuple[CopyPlan, ...]:
    """For each host on which the stack takes two GPUs or more."""
    found = []
    for host in stack.hosts:
        engines = [
            worker for worker in stack.on(host) if worker in stack.engines and _flag(worker.argv, "device") != CPU
        ]
        gpus = tuple(dict.fromkeys(gpu for worker in engines for gpu in _visible(worker, _rank_count(worker))))
        if len(gpus) > 1 and not any(worker.unresolved for worker in engines):
            env = {**_passed(engines[0].env), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", _VISIBLE: ",".join(gpus)}
            found.append(CopyPlan(host, planned_tail(engines[0].argv)[0], env, gpus))
    return tuple(found)


def _pairing(source: "Worker", destination: "Worker") -> Pairing:
    same_host = source.host == destination.host
    address = LOOPBACK if same_host else source.listen
    others = [worker for worker in (source, destination) if _backend(worker) != _NIXL]
    why_not = "; ".join(why for worker in (source, destination) for why in worker.unresolved)
    if others:
        why_not = f"{others[0].name} moves its KV with {_backend(others[0])}, and this test speaks NIXL"
    elif not same_host and address in _LOOPBACKS | _WILDCARDS:
        why_not = f"{source.name} listens on {address}, which says not how {destination.host} reaches it"
    return Pairing(_side(source), _side(destination), address, source.ports.get("bootstrap"), why_not)


def _backend(worker: "Worker") -> str:
    return _flag(worker.argv, "disaggregation-transfer-backend") or _UNSAID_BACKEND


def _side(worker: "Worker") -> SidePlan:
    tail = planned_tail(worker.argv)
    ranks = _rank_count(worker)
    devices: tuple[str, ...] = (CPU,) * ranks
    gpus: tuple[str | None, ...] = (None,) * ranks
    if _flag(worker.argv, "device") != CPU:
        first, step = (_number(worker, name, unsaid) for name, unsaid in (("base-gpu-id", 0), ("gpu-id-step", 1)))
        devices = tuple(str(first + number * step) for number in range(ranks))
        gpus = _visible(worker, ranks)
    binding = worker.argv[: len(worker.argv) - len(tail)]
    return SidePlan(worker.name, worker.host, binding, tail[0], _passed(worker.env), devices, gpus)


def _visible(worker: "Worker", ranks: int) -> tuple[str, ...]:
    """The GPUs of a worker's ranks, as its environment names them; by CUDA's index where it names none."""
    first, step = (_number(worker, name, unsaid) for name, unsaid in (("base-gpu-id", 0), ("gpu-id-step", 1)))
    indices = [first + number * step for number in range(ranks)]
    words = [word for word in worker.env.get(_VISIBLE, "").split(",") if word]
    return tuple(words[index] if index < len(words) else str(index) for index in indices)


def _rank_count(worker: "Worker") -> int:
    tensor = _number(worker, "tp-size", 0) or _number(worker, "tensor-parallel-size", 1)
    pipeline = _number(worker, "pp-size", 0) or _number(worker, "pipeline-parallel-size", 1)
    return tensor * pipeline


def _number(worker: "Worker", flag: str, unsaid: int) -> int:
    value = _flag(worker.argv, flag) or ""
    return int(value) if value.isdigit() else unsaid


def _flag(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag, the last one where there are several; None where there is none."""
    found: str | None = None
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag == f"--{name}":
            found = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
    return found


def _passed(env: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment without what a transfer has no use for: secrets, and what belongs to its unit."""
    return {name: value for name, value in env.items() if name not in _NOT_PASSED and redact(name, value) == value}
