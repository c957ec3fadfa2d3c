"""Processes of a host: all of them in short, and those that carry the mark of a unit of ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsv4ctl.doctor.asking import Question
from dsv4ctl.doctor.box import Box
from dsv4ctl.errors import OperationFailed
from dsv4ctl.procfs import Process, parse_stats
from dsv4ctl.stack import UNIT_VARIABLE

# cat fails for a process that ends meanwhile; what it wrote is whole records all the same.
PROCESSES = Question("/proc/PID/stat", 'cat "$1"/proc/[0-9]*/stat 2>/dev/null\n:')
MARKED = Question(
    "/proc/PID/environ",
    r"""
grep -azH -e '^MARK=' "$1"/proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | while IFS= read -r line; do
    at=${line%%/environ:*}
    [ "$at" != "$line" ] || continue
    echo "process ${at##*/} $(readlink "$at/ns/pid") ${line#*/environ:MARK=}"
    grep -oE '/[^ ]*/libuc[pt][-.][^ ]*' "$at/maps" 2>/dev/null | sort -u | sed 's/^/ucx /'
done
:
""".replace("MARK", UNIT_VARIABLE),
)
"""Processes with our mark in the environment that they were started with, as far as we may look."""

# What inherits processes whose parent has ended, beside pid 1. A `systemd --user` does, and so do the reapers of
# containers, as they are seen from the host.
_REAPERS = frozenset({"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "containerd-shim", "conmon"})
_PYTHON = ("python", "pt_main_thread", "sglang::")
# The kernel keeps 15 bytes of a title. SGLang sets `sglang::scheduler...` (scheduler.py, configure_scheduler).
SCHEDULER = "sglang::schedul"


@dataclass(frozen=True)
class Marked:
    """A process that says that it is of a unit of ours. `namespace` is its PID namespace, empty where we may not look;
    `ucx` are the files of UCX that it has mapped."""

    pid: int
    unit: str
    namespace: str
    ucx: tuple[str, ...]


def processes(box: Box) -> Mapping[int, Process]:
    """Every process that we can see, by pid.

    Raises:
        Unseen
    """
    return box.read(PROCESSES.name, parse_processes)


def marked(box: Box) -> tuple[Marked, ...]:
    """Raises:
    Unseen
    """
    return box.read(MARKED.name, parse_marked)


def orphans(table: Mapping[int, Process]) -> tuple[Process, ...]:
    """Schedulers of SGLang whose server has ended: a scheduler's parent is the server that started it, until then.

    In a container the server itself may be pid 1, and is then no reaper.
    """
    found = []
    for process in table.values():
        if not process.comm.startswith(SCHEDULER) or not process.alive:
            continue
        parent = table.get(process.ppid)
        name = parent.comm if parent is not None else ""
        if (process.ppid in (0, 1) and not name.startswith(_PYTHON)) or name in _REAPERS:
            found.append(process)
    return tuple(sorted(found, key=lambda process: process.pid))


def parse_processes(text: str) -> dict[int, Process]:
    """Raises:
    ValueError
    """
    try:
        return parse_stats(text.encode(errors="replace"))
    except OperationFailed as error:
        raise ValueError(str(error)) from error


def parse_marked(text: str) -> tuple[Marked, ...]:
    """Raises:
    ValueError
    """
    found: list[tuple[int, str, str, list[str]]] = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "process":
            pid, namespace, unit = rest.split(" ", 2)
            found.append((int(pid), unit, namespace, []))
        elif kind == "ucx" and found:
            found[-1][3].append(rest)
        else:
            raise ValueError(f"unknown line {line!r}")
    return tuple(Marked(pid, unit, namespace, tuple(ucx)) for pid, unit, namespace, ucx in found)


def ucx_copies(one: Marked) -> tuple[str, ...]:
    """The different builds of libucp and libuct in one process: one path of each kind is right."""
    by_kind: dict[str, list[str]] = {}
    for path in one.ucx:
        name = path.rpartition("/")[2]
        if match := re.match(r"(libuc[pt])(?:-[0-9a-f]+)?\.so", name):
            by_kind.setdefault(match[1], []).append(path)
    return tuple(sorted(path for paths in by_kind.values() if len(paths) > 1 for path in paths))
