"""Prefill and decode that cannot see each other's processes."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import may_use, shares_gpu_memory, ucx_gpu_workers
from dsv4ctl.doctor.looks.processes import MARKED, marked
from dsv4ctl.findings import Severity


def _uses_cuda_ipc(patient: Patient) -> bool:
    return shares_gpu_memory(patient) and all(may_use(worker, "cuda_ipc") for worker in ucx_gpu_workers(patient))


def _find(patient: Patient) -> Iterator[Fault]:
    # Nothing is known before a start, and there is nothing to know: one supervisor starts all of them, as we are.
    workers = {worker.unit: worker for worker in ucx_gpu_workers(patient)}
    seen: dict[str, set[str]] = {}
    for one in marked(patient.box):
        if one.unit in workers and one.namespace:
            seen.setdefault(one.namespace, set()).add(workers[one.unit].name)
    if len(seen) > 1:
        words = "; ".join(f"{', '.join(sorted(names))} in {namespace}" for namespace, names in sorted(seen.items()))
        yield Fault(
            f"engines run in several PID namespaces ({words}): UCX does not use cuda_ipc between them, and moves KV "
            "over TCP",
            {"namespaces": len(seen)},
        )


CHECK = Check(
    "PID_NAMESPACES_DIFFER",
    Severity.WARNING,
    "Do prefill and decode share a PID namespace?",
    "start both in one PID namespace: containers with --pid=host, or the second with --pid=container:FIRST",
    "https://github.com/openucx/ucx/pull/11514",
    (MARKED,),
    _find,
    _uses_cuda_ipc,
)
