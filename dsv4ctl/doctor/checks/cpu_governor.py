"""CPUs that are slow to wake: the schedulers of engines wait for them at every step."""

from collections import Counter
from collections.abc import Iterator

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import Check, Fault
from dsv4ctl.doctor.looks.kernel import GOVERNORS, CpuPolicy, cpu_policies
from dsv4ctl.doctor.looks.plan import wants_gpus
from dsv4ctl.findings import Severity

# With these drivers the hardware chooses by itself, and `powersave` is the name of its usual mode.
_BY_HARDWARE = frozenset({"intel_pstate", "amd-pstate-epp"})
_QUICK = frozenset({"performance", "balance_performance", "default"})


def _is_slow(policy: CpuPolicy) -> bool:
    if policy.governor in ("performance", "-"):
        return False
    return policy.driver not in _BY_HARDWARE or policy.preference not in (None, *_QUICK)


def _find(patient: Patient) -> Iterator[Fault]:
    policies = cpu_policies(patient.box)
    slow = Counter(
        f"{policy.governor} ({policy.driver}{f', {policy.preference}' if policy.preference else ''})"
        for policy in policies
        if _is_slow(policy)
    )
    if slow:
        words = ", ".join(f"{how} on {count}" for how, count in slow.most_common())
        yield Fault(
            f"the clock of CPUs is chosen to save power: {words} of {len(policies)} clock domains",
            {"domains": slow.total(), "of": len(policies)},
        )


CHECK = Check(
    "CPU_GOVERNOR",
    Severity.WARNING,
    "Do the CPUs run at full clock?",
    "`cpupower frequency-set -g performance`, or echo performance into scaling_governor of every CPU, at every boot",
    "https://www.kernel.org/doc/html/latest/admin-guide/pm/cpufreq.html",
    (GOVERNORS,),
    _find,
    wants_gpus,
)
