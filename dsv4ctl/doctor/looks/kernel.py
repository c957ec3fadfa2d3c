"""How the kernel was told to behave: IOMMU, power management of PCIe, HMM, scheduling, CPU clocks."""

import re
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box

KERNEL = Question(
    "/proc/cmdline",
    r"""
say() { if value= && read -r value <"$2" && [ -n "$value" ]; then printf '%s %s\n' "$1" "$value"; fi; } 2>/dev/null
[ -r "$1/proc/cmdline" ] || { echo "there is no /proc/cmdline" >&2; exit 1; }
say cmdline "$1/proc/cmdline"
say aspm "$1/sys/module/pcie_aspm/parameters/policy"
say balancing "$1/proc/sys/kernel/numa_balancing"
if [ -d "$1/sys/module/nvidia_uvm" ]; then echo "uvm loaded"; fi
say hmm_disabled "$1/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
:
""",
)
GOVERNORS = Question(
    "/sys/devices/system/cpu/cpufreq",
    r"""
for policy in "$1"/sys/devices/system/cpu/cpufreq/policy*; do
    [ -d "$policy" ] || continue
    driver= governor= preference=
    read -r driver <"$policy/scaling_driver"; read -r governor <"$policy/scaling_governor"
    [ ! -r "$policy/energy_performance_preference" ] || read -r preference <"$policy/energy_performance_preference"
    echo "${policy##*policy} ${driver:--} ${governor:--} ${preference:--}"
done 2>/dev/null
:
""",
)


@dataclass(frozen=True)
class Kernel:
    """What was found. None where the kernel does not have such a thing, or does not show it."""

    cmdline: tuple[str, ...]
    aspm_policy: str | None
    numa_balancing: int | None
    uvm_loaded: bool
    hmm_disabled: bool | None


@dataclass(frozen=True)
class CpuPolicy:
    """How the clock of some CPUs is chosen. `preference` is None where the driver knows no such thing."""

    number: int
    driver: str
    governor: str
    preference: str | None


def kernel(box: Box) -> Kernel:
    """Raises:
    Unseen
    """
    return box.read(KERNEL.name, parse_kernel)


def cpu_policies(box: Box) -> tuple[CpuPolicy, ...]:
    """None where the CPUs' clock is not chosen by this kernel: on a virtual machine, or by the firmware.

    Raises:
        Unseen
    """
    return box.read(GOVERNORS.name, parse_governors)


def parse_kernel(text: str) -> Kernel:
    """Raises:
    ValueError
    """
    words: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        words.setdefault(name, value)
    chosen = re.search(r"\[(\w+)\]", words.get("aspm", ""))
    return Kernel(
        cmdline=tuple(words.get("cmdline", "").split()),
        aspm_policy=chosen[1] if chosen else None,
        numa_balancing=int(words["balancing"]) if "balancing" in words else None,
        uvm_loaded="uvm" in words,
        hmm_disabled=words["hmm_disabled"] in ("Y", "1") if "hmm_disabled" in words else None,
    )


def parse_governors(text: str) -> tuple[CpuPolicy, ...]:
    """Raises:
    ValueError
    """
    found = []
    for line in text.splitlines():
        number, driver, governor, preference = line.split(" ")
        found.append(CpuPolicy(int(number), driver, governor, None if preference == "-" else preference))
    return tuple(found)
