"""A UCX_TLS without the transports for GPU memory."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import may_use, shares_gpu_memory, ucx_gpu_workers
from dsv4ctl.findings import Severity

_WITHOUT = {
    "cuda_copy": "UCX does not know GPU memory when it sees it",
    "cuda_ipc": "KV between GPUs of one host goes through host memory",
}


def _uses_ucx(patient: Patient) -> bool:
    return bool(ucx_gpu_workers(patient))


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in ucx_gpu_workers(patient):
        wanted = list(_WITHOUT) if shares_gpu_memory(patient) else ["cuda_copy"]
        left_out = [name for name in wanted if not may_use(worker, name)]
        if left_out:
            yield Fault(
                f"UCX_TLS={worker.env['UCX_TLS']} of {worker.name} leaves out {' and '.join(left_out)}: "
                f"{_WITHOUT[left_out[0]]}",
                {"worker": worker.name, "ucx_tls": worker.env["UCX_TLS"], "left_out": ", ".join(left_out)},
            )


CHECK = Check(
    "UCX_TLS_WITHOUT_CUDA",
    Severity.WARNING,
    "May UCX use its transports for GPU memory?",
    "add cuda (which is cuda_copy, cuda_ipc and gdr_copy) to UCX_TLS, or leave UCX_TLS out",
    "https://github.com/openucx/ucx/blob/master/docs/source/faq.md",
    (),
    _find,
    _uses_ucx,
)
