"""A file system of the stack that is nearly full."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.disks import Use, disks, disks_question
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
    mounts: dict[str, list[Use]] = {}
    for use in disks(patient):
        # Nothing is copied to where nothing can be written.
        if use.free_bytes < NEEDED_BYTES[use.purpose] and not (use.read_only and use.purpose == "model"):
            mounts.setdefault(use.mount, []).append(use)
    for mount, uses in mounts.items():
        needed = max(NEEDED_BYTES[use.purpose] for use in uses)
        words = ", ".join(f"{_WORDS[use.purpose]} ({use.path})" for use in uses)
        yield Fault(
            f"{mount} has {uses[0].free_bytes // _MIB} MiB free, and {needed // _MIB} MiB are wanted there for {words}",
            {"mount": mount, "free_bytes": uses[0].free_bytes, "needed_bytes": needed},
            Severity.ERROR if any(use.purpose in _BREAKS for use in uses) else Severity.WARNING,
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
