"""Boxes that are not here: the files and the programs of a host with eight RTX PRO 6000, whole or broken in one way.

A box is a directory tree, in which `sys`, `proc` and `dev` are what the kernel shows, and `bin` holds programs that
print what was recorded. The questions of `dsv4ctl doctor` are put to it by the same shell scripts as to a real host.
What nvidia-smi prints and how the PCI bus looks is in box_gpus.py.
"""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from dsv4ctl.doctor.asking import ask
from dsv4ctl.doctor.box import Box, Patient
from dsv4ctl.doctor.check import Check, questions_of
from dsv4ctl.facts import GpuFact, read_gpus
from tests.box_gpus import DRIVER, Port, nvidia_smi, topology
from tests.host_with import HostWith

HOME = "/home/o"
STATE = f"{HOME}/.local/state/dsv4ctl"
UNIT = "dsv4-eight-cards-"
GIB_IN_KB = 1024**2

_FREE_KB = 900 * GIB_IN_KB
_DISK = "/dev/nvme0n1p2 1800000000 900000000 {free} 50% /"
_SHM = "tmpfs {size} 0 {size} 0% /dev/shm"
_TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@dataclass(frozen=True)
class Recorded:
    """A box as a directory."""

    root: Path

    def write(self, path: str, text: str | bytes) -> None:
        """A file of it, such as `proc/cmdline`."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def link(self, path: str, target: str) -> None:
        """A link, as the kernel has them in /proc; it need not lead anywhere."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    def program(self, name: str, script: str) -> None:
        """A program on its PATH, as a shell script."""
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / name).chmod(0o755)

    def prints(self, name: str, lines: Sequence[str]) -> None:
        """A program that prints these lines, whatever it is asked."""
        self.program(name, f"cat <<'END'\n{chr(10).join(lines)}\nEND")

    def nvidia_smi(self, said: Mapping[str, str]) -> None:
        """nvidia-smi, by what `box_gpus.nvidia_smi` has it say."""
        for name, text in said.items():
            self.write(f"recorded/{name}", text)
        recorded = shlex.quote(str(self.root / "recorded"))
        self.program(
            "nvidia-smi",
            f"""case "$*" in
                --query-gpu=index,pci.bus_id,memory.total,uuid*) cat {recorded}/cards ;;
                --query-gpu=*) cat {recorded}/gpus ;;
                --query-compute-apps=*) cat {recorded}/users ;;
                "-q -d MEMORY") cat {recorded}/bar1 ;;
                "topo -m") cat {recorded}/topology ;;
                *) exit 6 ;;
            esac""",
        )

    def bus(self, ports: Sequence[Port]) -> None:
        """The PCI bus: every port with what is behind it."""
        for port in ports:
            for path, name, content in port.files():
                self.write(f"{path}/{name}", content)
            for path, target in port.links():
                self.link(path, target)

    def process(self, pid: int, comm: str, ppid: int = 1, unit: str | None = None, namespace: int = 4026531836) -> None:
        """A process, with its mark where it has one."""
        numbers = " ".join(str(number) for number in (ppid, pid, pid, *[0] * 13, 1, 0, 1000 + pid, *[0] * 30))
        self.write(f"proc/{pid}/stat", f"{pid} ({comm}) S {numbers}\n")
        self.write(f"proc/{pid}/environ", f"PATH=/usr/bin\0DSV4CTL_UNIT={unit}\0" if unit else "PATH=/usr/bin\0")
        self.write(f"proc/{pid}/maps", "")
        self.link(f"proc/{pid}/ns/pid", f"pid:[{namespace}]")
        (self.root / f"proc/{pid}/fd").mkdir(exist_ok=True)

    def listens(self, pid: int, port: int) -> None:
        """A process that is there holds a port on the loopback."""
        table = self.root / "proc/net/tcp"
        inode = 90000 + port
        row = f"   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0\n"
        self.write("proc/net/tcp", table.read_text() + row)
        self.link(f"proc/{pid}/fd/7", f"socket:[{inode}]")

    def shared_memory(self, name: str, size: int, age_s: float = 3600) -> None:
        """A file in /dev/shm."""
        self.write(f"dev/shm/{name}", b"\0" * size)
        written = time.time() - age_s
        os.utime(self.root / "dev/shm" / name, (written, written))

    def node(self, number: int, *, total_gib: int = 512, free_gib: int = 300, huge_gib: int = 0) -> None:
        """The memory of a NUMA node: what is free, what huge pages keep unused, and a page cache of 64 GiB."""
        kb = {"MemTotal": total_gib, "MemFree": free_gib, "Active(file)": 32, "Inactive(file)": 32, "SReclaimable": 2}
        lines = [f"Node {number} {name}: {gib * GIB_IN_KB:>14} kB" for name, gib in kb.items()]
        directory = f"sys/devices/system/node/node{number}"
        self.write(f"{directory}/meminfo", "\n".join([*lines, f"Node {number} HugePages_Total:     0", ""]))
        self.write(f"{directory}/distance", "10 32\n" if number == 0 else "32 10\n")
        pages = huge_gib * GIB_IN_KB // 2048
        for name in ("nr_hugepages", "free_hugepages"):
            self.write(f"{directory}/hugepages/hugepages-2048kB/{name}", f"{pages}\n")

    def disks(self, *, free_kb: int = _FREE_KB, shm_kb: int = 256 * GIB_IN_KB, options: str = "rw,relatime") -> None:
        """What `df` and `findmnt` say: one file system, and /dev/shm."""
        shm, disk = _SHM.format(size=shm_kb), _DISK.format(free=free_kb)
        self.program("df", f'echo Filesystem\ncase "$2" in */dev/shm) echo "{shm}" ;; *) echo "{disk}" ;; esac')
        self.prints("findmnt", [options])

    def limits(self, *, files: int | str = 524288, locked: int | str = "infinity") -> None:
        """Those of the user's systemd manager."""
        self.prints(
            "systemctl",
            [f"DefaultLimit{name}{kind}={number}" for name, number in (("NOFILE", files), ("MEMLOCK", locked))
             for kind in ("", "Soft")],
        )  # fmt: skip

    def kernel(
        self,
        *,
        cmdline: str = "quiet iommu=pt pcie_aspm=off",
        balancing: int = 0,
        hmm_disabled: str = "Y",
        aspm: str = "[default] performance powersave powersupersave",
    ) -> None:
        """How the kernel was told to behave."""
        self.write("proc/cmdline", f"BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 {cmdline}\n")
        self.write("proc/sys/kernel/numa_balancing", f"{balancing}\n")
        self.write("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", f"{hmm_disabled}\n")
        self.write("sys/module/pcie_aspm/parameters/policy", f"{aspm}\n")

    def governor(self, cpu: int, governor: str, driver: str = "acpi-cpufreq", preference: str = "") -> None:
        """How the clock of one CPU is chosen."""
        directory = f"sys/devices/system/cpu/cpufreq/policy{cpu}"
        self.write(f"{directory}/scaling_driver", f"{driver}\n")
        self.write(f"{directory}/scaling_governor", f"{governor}\n")
        if preference:
            self.write(f"{directory}/energy_performance_preference", f"{preference}\n")


def _host(recorded: Recorded) -> HostWith:
    """This machine, with the programs of a box before its own, and the home of the person there."""
    return HostWith(recorded.root / "bin", {"HOME": HOME, "XDG_STATE_HOME": ""})


def look(recorded: Recorded, checks: Sequence[Check], patient: Patient, *, in_time: bool = False) -> Patient:
    """The patient with what the checks' questions bring to light there; with the doctor's own deadlines if `in_time`,
    else however long it takes on this machine."""
    questions = questions_of(checks, patient)
    if not in_time:
        questions = tuple(replace(question, within_s=60.0) for question in questions)
    with closing(_host(recorded)) as host:
        return replace(patient, box=Box(ask(host, questions, root=str(recorded.root))))


def cards(recorded: Recorded) -> tuple[GpuFact, ...]:
    """The GPUs there, as a plan is made with them."""
    with closing(_host(recorded)) as host:
        return read_gpus(host, root=str(recorded.root))


def healthy(root: Path) -> Recorded:
    """A box with nothing wrong: GPUs 0-3 on node 0, 4-7 on node 1, each on a root port of its own at Gen5 x16."""
    box = Recorded(root)
    box.nvidia_smi(nvidia_smi())
    box.write("proc/driver/nvidia/version", driver_version())
    box.bus(topology())
    box.kernel()
    for number in (0, 1):
        box.node(number)
        box.governor(number, "performance")
    box.disks()
    box.limits()
    box.prints("timedatectl", ["yes"])
    box.program("chronyc", "exit 1")
    box.link("proc/self/ns/pid", "pid:[4026531836]")
    box.process(1, "systemd", ppid=0)
    box.process(700, "sshd")
    box.write("proc/net/tcp", _TCP)
    box.listens(700, 22)
    (root / "dev/shm").mkdir(parents=True)
    return box


def driver_version(version: str = DRIVER, *, kind: str = "NVIDIA UNIX Open Kernel Module for x86_64") -> str:
    """/proc/driver/nvidia/version."""
    return f"NVRM version: {kind}  {version}  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0\n"
