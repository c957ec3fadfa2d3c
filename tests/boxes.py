"""Boxes that are not here: the files and the programs of a host with eight RTX PRO 6000, whole or broken in one way.

A box is a directory tree, in which `sys`, `proc` and `dev` are what the kernel shows, and `bin` holds programs that
print what was recorded. The questions of `dsv4ctl doctor` are put to it by the same shell scripts as to a real host.
"""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4ctl.doctor.asking import ask
from dsv4ctl.doctor.box import Box
from dsv4ctl.doctor.check import Check, questions_of
from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.local import LocalHost

BUS_IDS = ("01", "11", "21", "31", "81", "91", "a1", "b1")
GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
DRIVER = "595.45.04"
MEMORY_MIB = 97887


@dataclass(frozen=True)
class Recorded:
    """A box as a directory."""

    root: Path

    def write(self, path: str, text: str) -> None:
        """A file of it, such as `proc/cmdline`."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def program(self, name: str, script: str) -> None:
        """A program on its PATH, as a shell script."""
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / name).chmod(0o755)


class _Here(LocalHost):
    """This machine, with the programs of a box before its own."""

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self._path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        return super().run(argv, **{**how, "env": {**(how.get("env") or {}), "PATH": self._path}})


def look(recorded: Recorded, checks: Iterable[Check]) -> Box:
    """What the checks' questions bring to light there."""
    with closing(_Here(recorded.root / "bin")) as host:
        return Box(ask(host, questions_of(checks), root=str(recorded.root)))


def healthy(root: Path) -> Recorded:
    """A box with nothing wrong: GPUs 0-3 on node 0, 4-7 on node 1, all links at Gen5 x16."""
    box = Recorded(root)
    for name, text in nvidia_smi().items():
        box.write(f"recorded/{name}", text)
    recorded = shlex.quote(str(root / "recorded"))
    box.program(
        "nvidia-smi",
        f'case "$*" in --query-gpu=*) cat {recorded}/gpus ;; "-q -d MEMORY") cat {recorded}/bar1 ;; *) exit 6 ;; esac',
    )
    return box


def nvidia_smi(*, lanes: int = 16, bar1_mib: int = 131072) -> dict[str, str]:
    """What nvidia-smi prints of the eight cards: `lanes` and `bar1_mib` are those of the first."""
    gpus, bar1 = [], ["", "==============NVSMI LOG==============", ""]
    for index, bus in enumerate(BUS_IDS):
        width = lanes if index == 0 else 16
        gpus.append(
            f"{index}, GPU-0000000{index}, 00000000:{bus.upper()}:00.0, {GPU_NAME}, {DRIVER}, {MEMORY_MIB}, 12.0, "
            f"1, 5, {width}, 16, P8"
        )
        size = bar1_mib if index == 0 else 131072
        bar1 += [
            f"GPU 00000000:{bus.upper()}:00.0",
            "    FB Memory Usage",
            f"        Total                             : {MEMORY_MIB} MiB",
            "    BAR1 Memory Usage",
            f"        Total                             : {size} MiB",
            "        Used                              : 1 MiB",
        ]
    return {"gpus": "\n".join(gpus) + "\n", "bar1": "\n".join(bar1) + "\n"}
