"""A directory that the stack writes to, on a file system that is mounted read-only."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.disks import Use, disks, disks_question
from dsv4ctl.findings import Severity

_WRITTEN_TO = frozenset({"state", "temporary", "cache"})


def _find(patient: Patient) -> Iterator[Fault]:
    mounts: dict[str, list[Use]] = {}
    for use in disks(patient):
        if use.purpose in _WRITTEN_TO and use.read_only is None:
            raise Unseen(f"findmnt does not tell how {use.mount} is mounted")
        if use.purpose in _WRITTEN_TO and use.read_only:
            mounts.setdefault(use.mount, []).append(use)
    for mount, uses in mounts.items():
        yield Fault(
            f"{mount} is mounted read-only, and these on it are written to: {', '.join(use.path for use in uses)}",
            {"mount": mount, "paths": ", ".join(use.path for use in uses)},
            None if any(use.purpose != "cache" for use in uses) else Severity.WARNING,
        )


CHECK = Check(
    "MOUNT_READ_ONLY",
    Severity.ERROR,
    "Can the stack write where it has to?",
    "look for errors of the disk in `dmesg` (a file system with errors is made read-only), or choose another directory",
    "",
    disks_question,
    _find,
)
