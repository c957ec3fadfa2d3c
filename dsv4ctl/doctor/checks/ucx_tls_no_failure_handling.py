"""A UCX_TLS in which no transport can tell that the other side has died."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import LOCAL_TRANSPORTS, transports, ucx_workers
from dsv4ctl.findings import Severity


def _uses_ucx(patient: Patient) -> bool:
    return bool(ucx_workers(patient))


def _find(patient: Patient) -> Iterator[Fault]:
    for worker in ucx_workers(patient):
        named = transports(worker)
        if named and LOCAL_TRANSPORTS.issuperset(named):
            yield Fault(
                f"UCX_TLS={worker.env['UCX_TLS']} of {worker.name} has no transport that can tell that the other side "
                "has died: NIXL cannot make its UCX backend, and the engine ends after it has loaded its weights",
                {"worker": worker.name, "ucx_tls": worker.env["UCX_TLS"]},
            )


CHECK = Check(
    "UCX_TLS_NO_FAILURE_HANDLING",
    Severity.ERROR,
    "Can UCX tell when the other half has died?",
    "add tcp to UCX_TLS (it then carries control messages alone), or leave UCX_TLS out",
    "https://github.com/ai-dynamo/nixl/issues/1846",
    (),
    _find,
    _uses_ucx,
)
