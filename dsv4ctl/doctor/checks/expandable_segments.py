"""PyTorch's expandable segments, which UCX cannot export from one process to another."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import expandable_segments, may_use, shares_gpu_memory, ucx_gpu_workers
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in ucx_gpu_workers(patient):
        variable = expandable_segments(worker)
        if variable is not None and may_use(worker, "cuda_ipc"):
            yield Fault(
                f"{worker.name} has expandable_segments:True in {variable}: UCX cannot export such memory to the other "
                "half, and moves KV through host memory over TCP without a word",
                {"worker": worker.name, "variable": variable, "value": worker.env[variable]},
            )


CHECK = Check(
    "EXPANDABLE_SEGMENTS",
    Severity.WARNING,
    "Can UCX share the memory that PyTorch allocates?",
    "leave expandable_segments out on prefill and decode, or look at the rate of a transfer with `dsv4ctl doctor "
    "--deep`",
    "https://github.com/ai-dynamo/nixl/issues/1754",
    (),
    _find,
    shares_gpu_memory,
)
