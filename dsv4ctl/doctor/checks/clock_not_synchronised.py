"""A clock that nobody sets, on one of several hosts."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.limits import CLOCK, is_synchronised
from dsv4ctl.findings import Severity
from dsv4ctl.stack import hosts_of


def _spans_hosts(patient: Patient) -> bool:
    return len(hosts_of(patient.profile)) > 1


def _find(patient: Patient) -> Iterator[Fault]:
    synchronised, source = is_synchronised(patient.box)
    if not synchronised:
        yield Fault(
            f"the clock follows no time server (says {source}): the logs of this host and of the others cannot be laid "
            "beside each other",
            {"told_by": source},
        )


CHECK = Check(
    "CLOCK_NOT_SYNCHRONISED",
    Severity.WARNING,
    "Does the clock follow a time server?",
    "install chrony or turn systemd-timesyncd on (`timedatectl set-ntp true`)",
    "",
    (CLOCK,),
    _find,
    _spans_hosts,
)
