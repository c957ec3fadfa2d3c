"""A GPU of the plan whose memory somebody else holds: what the engine needs may not be there."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import GPU_USERS, GPUS, gpu_users, planned
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.doctor.looks.processes import MARKED, PROCESSES, marked, orphans, processes
from dsv4ctl.findings import Severity
from dsv4ctl.printable import printable


def _find(patient: Patient) -> Iterator[Fault]:
    own = {gpu.uuid: gpu for gpu in planned(patient)}
    users = [user for user in gpu_users(patient.box) if user.gpu_uuid in own]
    if not users:
        return
    table = processes(patient.box)
    units = {worker.unit for worker in patient.workers}
    ours = {one.pid for one in marked(patient.box) if one.unit in units}
    # Those have a finding of their own.
    told = {process.pid for process in orphans(table)}
    unseen = sorted({user.pid for user in users if user.pid not in table})
    for pid in dict.fromkeys(user.pid for user in users):
        if pid in ours or pid in told or (pid in unseen and ours):
            continue
        held = [user for user in users if user.pid == pid]
        total = None if any(user.memory_mib is None for user in held) else sum(user.memory_mib or 0 for user in held)
        size = "memory, nobody says how much," if total is None else f"{total} MiB"
        gpus = ", ".join(own[user.gpu_uuid].named for user in held)
        who = f" ({printable(table[pid].comm)})" if pid in table else ""
        yield Fault(
            f"pid {pid}{who}, which is none of ours, holds {size} of {gpus}",
            {"pid": pid, "gpu": ", ".join(str(own[user.gpu_uuid].index) for user in held), "used_mib": total},
        )
    if unseen and ours:
        # Seen from within a container our own processes have other numbers than the driver has for them.
        raise Unseen(
            f"the driver names pid {', '.join(map(str, unseen))}, and there is no such process here",
            "run it on the machine itself, outside of any container",
        )


CHECK = Check(
    "GPU_SHARED",
    Severity.WARNING,
    "Does nobody else hold memory of the GPUs?",
    "end it if it is yours and forgotten; else ask whose it is, or give the worker other GPUs: it is left alone, and "
    "the engine may not find memory enough",
    "",
    (GPUS, GPU_USERS, PROCESSES, MARKED),
    _find,
    wants_gpus,
)
