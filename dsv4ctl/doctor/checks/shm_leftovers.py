"""Shared memory of engines that are gone."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import AS_ROOT, Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.leftovers import LEFTOVERS, unused
from dsv4ctl.findings import Severity

_NAMED = 5
_MIB = 1024**2


def _has_engines(patient: Patient) -> bool:
    return bool(patient.engines)


def _find(patient: Patient) -> Iterator[Fault]:
    found = unused(patient.box)
    left = [file for file in found if file.certain]
    if left:
        size = sum(file.size_bytes for file in left)
        names = ", ".join(file.name for file in sorted(left, key=lambda file: -file.size_bytes)[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        yield Fault(
            f"nobody uses {len(left)} file{'' if len(left) == 1 else 's'} of engines in /dev/shm, of "
            f"{size / _MIB:.1f} MiB together: {names}{more}",
            {"files": len(left), "bytes": size},
        )
    elif found:
        raise Unseen(
            f"{len(found)} files of engines are in /dev/shm, and not every process may be looked into to see who "
            "uses them",
            f"{AS_ROOT}; in a container, run it on the machine itself",
        )


CHECK = Check(
    "SHM_LEFTOVERS",
    Severity.WARNING,
    "Is shared memory left of engines that are gone?",
    "when no engine runs, remove them by name from /dev/shm; they count against its size and against memory",
    "https://github.com/sgl-project/sglang/issues/40723",
    (LEFTOVERS,),
    _find,
    _has_engines,
)
