"""Two builds of UCX in one process: the one in NIXL's wheel, and another of the system's."""

import posixpath
import shlex
from collections.abc import Iterator

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.plan import library_paths, ucx_workers
from dsv4ctl.doctor.looks.processes import MARKED, marked, ucx_copies
from dsv4ctl.findings import Severity

_NAME = "libraries of LD_LIBRARY_PATH"
_SCRIPT = r"""
tell() { for file in "$1"/libuc[pt].so* "$1"/libuc[pt]-*.so*; do [ ! -e "$file" ] || echo "$2"; done; }
"""


def _uses_ucx(patient: Patient) -> bool:
    return bool(ucx_workers(patient))


def _directories(patient: Patient) -> list[str]:
    named = [path for worker in ucx_workers(patient) for name, path in library_paths(worker) if name != "LD_PRELOAD"]
    return list(dict.fromkeys(named))


def _questions(patient: Patient) -> tuple[Question, ...]:
    directories = _directories(patient)
    if not directories:
        return (MARKED,)
    told = [f'tell "$1"{shlex.quote(path)} {shlex.quote(path)}' for path in directories]
    return (MARKED, Question(_NAME, "\n".join([_SCRIPT, *told, ":"])))


def _find(patient: Patient) -> Iterator[Fault]:
    with_ucx = set(patient.box.text(_NAME).splitlines()) if _directories(patient) else set()
    for worker in ucx_workers(patient):
        for name, path in library_paths(worker):
            file = posixpath.basename(path)
            if path in with_ucx or (name == "LD_PRELOAD" and file.startswith(("libucp", "libuct", "libucs", "libucm"))):
                yield Fault(
                    f"{name} of {worker.name} leads to another UCX than the one in NIXL's wheel: {path}",
                    {"worker": worker.name, "variable": name, "path": path},
                )
    units = {worker.unit: worker.name for worker in ucx_workers(patient)}
    for one in marked(patient.box):
        if one.unit in units and (copies := ucx_copies(one)):
            yield Fault(
                f"pid {one.pid} of {units[one.unit]} has more than one UCX loaded: {', '.join(copies)}",
                {"worker": units[one.unit], "pid": one.pid, "files": ", ".join(copies)},
                Severity.ERROR,
            )


CHECK = Check(
    "UCX_MIXED",
    Severity.WARNING,
    "Is there one UCX alone in every engine?",
    "take the other UCX (HPC-X, a system package) out of LD_LIBRARY_PATH and LD_PRELOAD, or build NIXL against it",
    "https://github.com/vllm-project/vllm/issues/32375",
    _questions,
    _find,
    _uses_ucx,
)
