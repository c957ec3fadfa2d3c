"""Somebody listens on a port that the plan needs."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.ports import LISTENERS, listeners
from dsv4ctl.doctor.looks.processes import MARKED, PROCESSES, marked, processes
from dsv4ctl.findings import Severity
from dsv4ctl.preflight import check_ports


def _find(patient: Patient) -> Iterator[Fault]:
    commands = {pid: process.comm for pid, process in processes(patient.box).items()}
    units = {one.pid: one.unit for one in marked(patient.box)}
    there = listeners(patient.box)
    for worker in patient.workers:
        others = [listener for listener in there if units.get(listener.pid or 0) != worker.unit]
        for finding in check_ports([worker], others, commands, units):
            yield Fault(finding.message, dict(finding.evidence), finding.severity, finding.remedy)


CHECK = Check(
    "PORT_TAKEN",
    Severity.ERROR,
    "Are the ports free that the stack needs?",
    "end that process if it is yours, or give the worker another port in the profile",
    "",
    (LISTENERS, PROCESSES, MARKED),
    _find,
)
