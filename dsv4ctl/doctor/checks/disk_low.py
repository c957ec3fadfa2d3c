"""A file system of the stack that is nearly full."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.disks import disks, disks_question
from dsv4ctl.findings import Severity
from dsv4ctl.preflight import DISK_NEEDED_BYTES

_MIB = 1024**2
NEEDED_BYTES = {
    "state": DISK_NEEDED_BYTES,
    "temporary": DISK_NEEDED_BYTES,
    "cache": 2 * 1024**3,
    "model": 1024**3,
}
"""By purpose. A cold start compiles kernels into the cache; a model that is copied to a full disk is cut short."""

_WORDS = {
    "state": "logs and records",
    "temporary": "temporary files",
    "cache": "compiled kernels",
    "model": "the model",
}
_BREAKS = frozenset({"state", "temporary"})


def _find(patient: Patient) -> Iterator[Fault]:
    for use in disks(patient):
        needed = NEEDED_BYTES[use.purpose]
        # Nothing is copied to where nothing can be written.
        if use.free_bytes >= needed or (use.read_only and use.purpose == "model"):
            continue
        yield Fault(
            f"{use.free_bytes // _MIB} MiB are free on {use.mount}, where {use.path} for {_WORDS[use.purpose]} is; "
            f"{needed // _MIB} MiB are wanted",
            {"path": use.path, "mount": use.mount, "free_bytes": use.free_bytes, "needed_bytes": needed},
            Severity.ERROR if use.purpose in _BREAKS else Severity.WARNING,
        )


CHECK = Check(
    "DISK_LOW",
    Severity.ERROR,
    "Is there room on the stack's disks?",
    "free some space there, or set XDG_STATE_HOME (or the host's state_dir in the profile) to a larger disk",
    "",
    disks_question,
    _find,
)
