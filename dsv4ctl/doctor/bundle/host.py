"""What a bundle says of a host itself: hardware, driver, kernel, packages. Asked in one round trip."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsv4ctl.doctor.asking import Question, ask

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

_WITHIN_S = 15.0
_KERNEL_LINES = 1000

_PACKAGES = """
import importlib.metadata, sys
print(sys.version)
found = {(dist.metadata["Name"] or "?", dist.version) for dist in importlib.metadata.distributions()}
print("\\n".join("==".join(each) for each in sorted(found, key=lambda each: each[0].lower())))
"""

# The lines of the kernel's log that speak of GPUs, PCIe, address translation, or memory that ran out.
_KERNEL = (
    r"NVRM|Xid|nvidia|AER|pcieport|IOMMU|DMAR|AMD-Vi|oom|[Oo]ut of memory|[Kk]illed process|"
    r"segfault|hung_task|blocked for more than|Machine check|mce:"
)

_SCRIPTS: Mapping[str, str] = {
    "system.txt": 'uname -a; cat "$1/etc/os-release"; uptime',
    "kernel-command-line.txt": 'cat "$1/proc/cmdline"',
    "cpu.txt": "lscpu",
    "memory.txt": 'cat "$1/proc/meminfo"',
    "disks.txt": "df -hT; ls -l /dev/shm",
    "limits.txt": "ulimit -a",
    "numa.txt": "numactl -H",
    "lspci-tree.txt": "lspci -tv",
    "lspci.txt": "lspci -vvv",
    "driver.txt": """
        cat "$1/proc/driver/nvidia/version" "$1/proc/driver/nvidia/params" || exit 1
        for file in "$1"/sys/module/nvidia*/parameters/*; do
            [ -r "$file" ] && printf '%s: %s\\n' "$file" "$(cat "$file")"
        done
        :""",
    "nvidia-smi.txt": "nvidia-smi",
    "nvidia-smi-q.txt": "nvidia-smi -q",
    "topology.txt": "nvidia-smi topo -m",
    "kernel-log.txt": f"""
        log=$(dmesg -T) || exit 1
        printf '%s\\n' "$log" | grep -E {shlex.quote(_KERNEL)} | tail -n {_KERNEL_LINES}
        :""",
}


def host_texts(host: "Host", python: str) -> Mapping[str, tuple[bytes, str]]:
    """By file name: what the host says, and why it does not. `python` is the engine's interpreter.

    Raises:
        OperationFailed, HostUnreachable, DeadlineExceeded: the host answers nothing at all.
    """
    scripts = {**_SCRIPTS, "packages.txt": f"{shlex.quote(python)} -c {shlex.quote(_PACKAGES)}"}
    answers = ask(host, [Question(name, script, _WITHIN_S) for name, script in scripts.items()])
    return {name: (answer.text.encode(), answer.failure) for name, answer in answers.items()}
