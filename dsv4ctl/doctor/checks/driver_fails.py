"""nvidia-smi is there, and cannot talk to the driver."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.gpus import DRIVER, GPUS, driver, gpus
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    if not driver(patient.box).has_smi:
        return
    failure = patient.box.answers[GPUS.name].failure if GPUS.name in patient.box.answers else "it was not asked"
    if failure.startswith("no answer"):
        raise Unseen(
            f"nvidia-smi: {failure}. A GPU that has fallen off the bus does that, and so does a driver without "
            "persistence mode that has to wake eight cards",
            "look in `dmesg | grep -i -e NVRM -e Xid`; `nvidia-smi -pm 1` turns persistence mode on",
        )
    if failure:
        yield Fault(f"nvidia-smi fails: {failure}", {"said": failure})
    else:
        # What is no list of GPUs is no answer.
        gpus(patient.box)


CHECK = Check(
    "DRIVER_FAILS",
    Severity.ERROR,
    "Does the driver answer?",
    "look for the reason in `dmesg | grep -i -e NVRM -e Xid`; after an upgrade of the driver the machine has to be "
    "booted again",
    "",
    (DRIVER, GPUS),
    _find,
    wants_gpus,
)
