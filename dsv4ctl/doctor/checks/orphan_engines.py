"""Schedulers whose server has ended: they keep GPU memory and ports."""

from collections.abc import Iterator

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPU_USERS, GPUS, gpu_users, planned
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.doctor.looks.processes import PROCESSES, orphans, processes
from dsv4ctl.findings import Severity


def _questions(patient: Patient) -> tuple[Question, ...]:
    return (PROCESSES, GPUS, GPU_USERS) if wants_gpus(patient) else (PROCESSES,)


def _has_engines(patient: Patient) -> bool:
    return bool(patient.engines)


def _find(patient: Patient) -> Iterator[Fault]:
    found = orphans(processes(patient.box))
    if not found:
        return
    pids = ", ".join(str(process.pid) for process in found)
    held: dict[str, int] = {}
    words = ""
    if wants_gpus(patient):
        try:
            own = {gpu.uuid: gpu for gpu in planned(patient)}
            users = [user for user in gpu_users(patient.box) if user.pid in {process.pid for process in found}]
        except Unseen as why:
            words = f"; what they hold of the GPUs nobody knows ({why})"
        else:
            for user in users:
                if gpu := own.get(user.gpu_uuid):
                    held[gpu.named] = held.get(gpu.named, 0) + (user.memory_mib or 0)
            words = "".join(f", and {mib} MiB of {name} are theirs" for name, mib in held.items())
    yield Fault(
        f"{len(found)} scheduler{'' if len(found) == 1 else 's'} of SGLang without a server: pid {pids}{words}",
        {"pids": pids, "gpus": ", ".join(held) or None},
        Severity.ERROR if held else None,
        f"see that nobody waits for them, and end them with: kill {pids.replace(',', '')}",
    )


CHECK = Check(
    "ORPHAN_ENGINES",
    Severity.WARNING,
    "Has every scheduler its server?",
    "see that nobody waits for them, and end them with kill",
    "https://github.com/sgl-project/sglang/issues/31645",
    _questions,
    _find,
    _has_engines,
)
