"""A limit of open files that an engine under load runs into."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.limits import limits_of_engines, limits_question
from dsv4ctl.findings import Severity

RAISED_TO = 65535
"""What SGLang raises its soft limit to, where the hard limit allows it (set_ulimit in sglang/srt/utils/common.py)."""

LEAST = 8192
"""A connection takes a file in the router and in each half, and the ranks hold some hundreds for themselves."""


def _has_engines(patient: Patient) -> bool:
    return bool(patient.engines)


def _find(patient: Patient) -> Iterator[Fault]:
    limits = limits_of_engines(patient)
    soft, hard = limits.files
    effective = max(soft, RAISED_TO) if hard >= RAISED_TO else soft
    if effective < LEAST:
        yield Fault(
            f"an engine may have {effective} files open (so {limits.source}), and SGLang cannot raise that to "
            f"{RAISED_TO}, as the hard limit is {hard}: it refuses connections under load",
            {"soft": soft, "hard": hard, "wanted": RAISED_TO},
        )


CHECK = Check(
    "OPEN_FILES_LOW",
    Severity.WARNING,
    "May an engine open enough files?",
    f"raise the hard limit to {RAISED_TO}: `* hard nofile {RAISED_TO}` in /etc/security/limits.d, DefaultLimitNOFILE "
    "in /etc/systemd/user.conf; then log in again",
    "",
    limits_question,
    _find,
    _has_engines,
)
