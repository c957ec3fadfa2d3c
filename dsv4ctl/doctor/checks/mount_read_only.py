"""A directory that the stack writes to, on a file system that is mounted read-only."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.disks import disks, disks_question
from dsv4ctl.findings import Severity

_WRITTEN_TO = frozenset({"state", "temporary", "cache"})


def _find(patient: Patient) -> Iterator[Fault]:
    for use in disks(patient):
        if use.purpose not in _WRITTEN_TO:
            continue
        if use.read_only is None:
            raise Unseen(f"findmnt does not tell how {use.mount} is mounted")
        if use.read_only:
            yield Fault(
                f"{use.mount} is mounted read-only, and {use.path} on it is written to",
                {"path": use.path, "mount": use.mount},
                Severity.WARNING if use.purpose == "cache" else None,
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
