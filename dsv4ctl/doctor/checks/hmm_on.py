"""Heterogeneous memory management in nvidia_uvm, which has hung and broken Blackwell boxes."""

from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient, Unseen
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.kernel import KERNEL, kernel
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity


def _find(patient: Patient) -> Iterator[Fault]:
    found = kernel(patient.box)
    if not found.uvm_loaded:
        raise Unseen(
            "nvidia_uvm is not loaded; the first CUDA program loads it",
            "`modprobe nvidia_uvm` once the driver is there, and run it again",
        )
    # A module without the parameter knows no HMM.
    if found.hmm_disabled is False:
        yield Fault("HMM of nvidia_uvm is not switched off", {"uvm_disable_hmm": False})


CHECK = Check(
    "HMM_ON",
    Severity.WARNING,
    "Is HMM of nvidia_uvm switched off?",
    "put `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/uvm.conf, and boot again or load the module again",
    "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1223",
    (KERNEL,),
    _find,
    wants_gpus,
)
