"""Memory on a host's GPUs and who holds it, as nvidia-smi has it: what has to be free again, and who else is there.

nvidia-smi gives processes by the host's pids. Inside a container it shows none, and then the memory in use is all that
can be compared.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.doctor.asking import ANSWER_WITHIN_S, Question, ask
from dsv4ctl.errors import OperationFailed

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host
    from dsv4ctl.stack import Worker

# A driver's own bookkeeping moves by a few MiB from one look to the next.
_SLACK_MIB = 64
_HAS_SMI = "command -v nvidia-smi >/dev/null || exit 0\n"
_GPUS = f"{_HAS_SMI}nvidia-smi --query-gpu=index,uuid,memory.used --format=csv,noheader,nounits"
_APPS = f"{_HAS_SMI}nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits"


@dataclass(frozen=True)
class GpuUse:
    """One GPU: memory in use in MiB, and how much of it each process holds, by pid."""

    index: int
    used_mib: int
    holders: dict[int, int]


@dataclass(frozen=True)
class Tenant:
    """A process on a GPU of ours that is none of ours."""

    gpu: int
    pid: int
    used_mib: int


def indices_of(workers: "Iterable[Worker]") -> set[int]:
    """The GPUs of planned workers as nvidia-smi counts them: a plan has bus ids resolved in the environment."""
    visible = (worker.env.get("CUDA_VISIBLE_DEVICES", "") for worker in workers if worker.gpus)
    return {int(word) for text in visible for word in text.split(",") if word.strip().isdigit()}


def read_gpu_use(host: "Host", *, within_s: float = ANSWER_WITHIN_S) -> tuple[GpuUse, ...]:
    """Every GPU of a host; none where there is no nvidia-smi, which is given `within_s`.

    Raises:
        OperationFailed: nvidia-smi is there and does not answer, or its answer cannot be read.
        HostUnreachable, DeadlineExceeded
    """
    answers = ask(host, [Question("GPUs", _GPUS, within_s), Question("processes", _APPS, within_s)])
    for answer in answers.values():
        if answer.failure:
            raise OperationFailed(f"nvidia-smi on {host.name} does not tell who uses the GPUs", why=answer.failure)
    try:
        return parse_gpu_use(answers["GPUs"].text, answers["processes"].text)
    except ValueError as error:
        raise OperationFailed(f"nvidia-smi on {host.name} answered in a way we cannot read", why=str(error)) from error


def parse_gpu_use(gpus: str, apps: str) -> tuple[GpuUse, ...]:
    """The GPUs in the answers to both questions.

    Raises:
        ValueError: they are something else.
    """
    holders: dict[str, dict[int, int]] = {}
    for line in filter(None, apps.splitlines()):
        pid, uuid, used = (part.strip() for part in line.split(","))
        # A process whose memory the driver does not tell has "[N/A]" there.
        holders.setdefault(uuid, {})[int(pid)] = int(used) if used.isdigit() else 0
    found = []
    for line in filter(None, gpus.splitlines()):
        index, uuid, used = (part.strip() for part in line.split(","))
        found.append(GpuUse(int(index), int(used), holders.get(uuid, {})))
    return tuple(found)


def tenants(use: Sequence[GpuUse], gpus: Collection[int], ours: Collection[int]) -> tuple[Tenant, ...]:
    """Processes on these GPUs that are none of ours. They are told, and never touched."""
    return tuple(
        Tenant(gpu.index, pid, mib)
        for gpu in use
        if gpu.index in gpus
        for pid, mib in sorted(gpu.holders.items())
        if pid not in ours
    )


def not_given_back(
    before: Sequence[GpuUse], now: Sequence[GpuUse], gpus: Collection[int], ours: Collection[int]
) -> tuple[str, ...]:
    """What of our GPUs is still in use that was ours: a sentence for each, none when all is free again.

    What others held before they may hold still. Where nvidia-smi names no process (in a container), memory has to have
    become less than half of what it was: nobody can say whose the rest is. Without any process of `ours` there was
    nothing to give back.
    """
    if not ours:
        return ()
    words: list[str] = []
    named = any(gpu.holders for gpu in (*before, *now))
    was = {gpu.index: gpu for gpu in before}
    for gpu in now:
        if gpu.index not in gpus or gpu.index not in was:
            continue
        still = sorted(pid for pid in gpu.holders if pid in ours)
        if still:
            words.append(f"GPU {gpu.index} is still held by pid {', '.join(map(str, still))}")
            continue
        held = sum(mib for pid, mib in was[gpu.index].holders.items() if pid in ours)
        limit = was[gpu.index].used_mib - held + _SLACK_MIB if named else was[gpu.index].used_mib // 2 + _SLACK_MIB
        # Others may have taken more meanwhile: theirs is not ours to wait for.
        others_more = sum(gpu.holders.values()) - (sum(was[gpu.index].holders.values()) - held)
        if gpu.used_mib > limit + max(0, others_more):
            words.append(f"GPU {gpu.index} has {gpu.used_mib} MiB in use, and had {limit} MiB without our stack")
    return tuple(words)
