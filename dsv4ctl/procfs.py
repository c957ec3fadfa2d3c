"""What the kernel says about a host's processes, ports and shared memory, read from its /proc.

Every function takes a `Host`, costs one round trip, and sees what the host's user may see: root sees all; another
user cannot look into the processes of others, and then the answer says so instead of guessing. A /proc mounted with
`hidepid` hides them altogether.
"""

import contextlib
import ipaddress
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import Host

USER_HZ = 100
"""Clock ticks a second in /proc. The kernel's interface fixes it at 100 on x86-64 and arm64, whatever its own HZ is."""

_DEADLINE_S = 20.0
_SHOWN = 80
"""Characters of a command that is shown."""

# pid (comm) state and then numbers only. The kernel does not escape comm, which a process may set to anything of at
# most 15 bytes: spaces, newlines, ") R 1 1". It cannot hold the forty numbers that follow, so the first ")" with
# those behind it is the real one.
_STAT = re.compile(rb"(\d+) \((.*?)\) ([A-Za-z])((?: -?\d+){40,})\n", re.DOTALL)


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat. `start_ticks` counts from boot in USER_HZ; with pid and boot it names the process."""

    pid: int
    ppid: int
    pgid: int
    session: int
    start_ticks: int
    state: str
    comm: str
    threads: int = 1

    @property
    def alive(self) -> bool:
        """False for a zombie: it holds nothing but its pid. A zombie main thread with living threads is alive."""
        return self.state not in "ZX" or self.threads > 1


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket. `pids` are the processes that hold it, as far as we may look; empty: not known to us."""

    port: int
    address: str
    family: Literal["ipv4", "ipv6"]
    pids: tuple[int, ...] = ()

    @property
    def pid(self) -> int | None:
        """The lowest pid of its holders (a socket may be shared after a fork), or None when we may not look it up."""
        return self.pids[0] if self.pids else None


@dataclass(frozen=True)
class ShmSegment:
    """A file under /dev/shm that processes have open or mapped. `deleted`: it has no name any more, only its memory."""

    path: str
    pids: tuple[int, ...]
    deleted: bool


@dataclass(frozen=True)
class ShmFile:
    """A file in /dev/shm. `in_use` is None when nobody was seen using it, but some process could not be looked into."""

    path: str
    size_bytes: int
    owner_uid: int
    pids: tuple[int, ...]
    in_use: bool | None


def parse_stats(data: bytes) -> dict[int, Process]:
    """The processes in any number of /proc/PID/stat files put one behind the other, by pid.

    Raises:
        OperationFailed: the text is not what the kernel writes.
    """
    found: dict[int, Process] = {}
    position = 0
    while position < len(data):
        match = _STAT.match(data, position)
        if match is None:
            excerpt = data[position : position + 80].decode(errors="backslashreplace")
            raise OperationFailed("cannot read /proc/PID/stat", why=f"unexpected text {excerpt!r}")
        pid, comm, state, rest = match.groups()
        # `rest` begins with field 4 of proc_pid_stat(5): ppid, pgrp, session; 20 is num_threads, 22 is starttime.
        numbers = [int(number) for number in rest.split()]
        found[int(pid)] = Process(
            pid=int(pid),
            ppid=numbers[0],
            pgid=numbers[1],
            session=numbers[2],
            start_ticks=numbers[18],
            state=state.decode(),
            comm=comm.decode(errors="backslashreplace"),
            threads=numbers[16],
        )
        position = match.end()
    return found


def processes(host: Host) -> dict[int, Process]:
    """Every process of the host by pid, zombies too. One that ends while we read is simply not there."""
    # cat fails for a process that ended between the listing and the read; what it wrote is still whole records.
    done = host.run(["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null"], deadline_s=_DEADLINE_S, check=False)
    found = parse_stats(done.stdout)
    if not found:
        raise OperationFailed(f"host {host.name} shows no process", why="/proc is not mounted, or cannot be read")
    return found


def still_there(host: Host, pid: int, start_ticks: int) -> bool:
    """Whether this very process is alive: one read, for looks that come several times a second."""
    try:
        data = host.read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return False
    process = parse_stats(data).get(pid)
    return process is not None and process.start_ticks == start_ticks and process.alive


def descendants(table: dict[int, Process], roots: Collection[int]) -> set[int]:
    """The pids below `roots` in the tree of parents, without the roots themselves."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in table.values():
        children[process.ppid].append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children[waiting.pop()]:
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found - set(roots)


def boot_id(host: Host) -> str:
    """The kernel's random name of this boot."""
    return host.read("/proc/sys/kernel/random/boot_id").decode().strip()


def uptime_s(host: Host) -> float:
    """Seconds since boot, suspended time included: the clock of `Process.start_ticks`."""
    return float(host.read("/proc/uptime").split()[0])


def age_s(process: Process, uptime: float) -> float:
    """Seconds since the process was started, from `uptime_s` of its host."""
    return max(0.0, uptime - process.start_ticks / USER_HZ)


def environ(host: Host, pid: int) -> dict[str, str]:
    """The environment the process was started with. What it changed itself later is not seen.

    Raises:
        FileNotFoundError, PermissionError: no such process, or not ours to look into.
        OperationFailed: the process wrote over it. setproctitle does, and so does every process of SGLang, unless
            SPT_NOENV is set in its environment.
    """
    entries = host.read(f"/proc/{pid}/environ").split(b"\0")
    variables = [entry.decode(errors="backslashreplace") for entry in entries if entry]
    if any("=" not in variable for variable in variables) or (len(entries) > 1 and not variables):
        raise OperationFailed(
            f"the environment of pid {pid} on {host.name} cannot be read back",
            why="the process has written its title over it",
            hint="start it with SPT_NOENV=1",
        )
    return dict(variable.split("=", 1) for variable in variables)


def cmdline(host: Host, pid: int) -> tuple[str, ...]:
    """The arguments of the process, or the title it gave itself; empty for a zombie or a kernel thread.

    Raises:
        FileNotFoundError, PermissionError: no such process, or not ours to look into.
    """
    data = host.read(f"/proc/{pid}/cmdline")
    first, *others = (part.decode(errors="backslashreplace") for part in data.removesuffix(b"\0").split(b"\0"))
    # A title shorter than the arguments it was written over is padded with NULs, which look like empty arguments.
    return (first, *others) if any(others) else (first,) if first else ()


def commands_of(host: Host, listeners: "Iterable[Listener]", ports: Collection[int]) -> dict[int, str]:
    """The command, by pid, of each process that listens on one of these ports; without those that have ended.

    Raises:
        HostUnreachable
    """
    found: dict[int, str] = {}
    for listener in listeners:
        if listener.port in ports and listener.pid is not None:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                found[listener.pid] = " ".join(cmdline(host, listener.pid))[:_SHOWN]
    return found


# Sockets are joined to processes by inode. find reads the links of every /proc/PID/fd we may read, in one go; it fails
# for a process that it may not look into. $1 is put before every path.
LISTENERS_SCRIPT = r"""
cat "$1/proc/net/tcp"; echo --; cat "$1/proc/net/tcp6" 2>/dev/null; echo --
find "$1"/proc/[0-9]*/fd -lname 'socket:*' -printf '%p %l\n' 2>/dev/null
:
"""


def listeners(host: Host) -> tuple[Listener, ...]:
    """Every listening TCP socket of the host's network namespace, by port."""
    done = host.run(["sh", "-c", LISTENERS_SCRIPT, "sh", ""], deadline_s=_DEADLINE_S, check=False)
    try:
        return parse_listeners(done.stdout.decode(errors="replace"))
    except ValueError as error:
        raise OperationFailed(f"cannot list the ports of {host.name}", why=str(error)) from error


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """The listening sockets in what `LISTENERS_SCRIPT` printed, by port.

    Raises:
        ValueError: it could not look, or that is not what the kernel writes.
    """
    tcp, tcp6, links = text.split("--\n", 2)
    if not tcp:
        raise ValueError("/proc/net/tcp cannot be read")
    holders: dict[str, set[int]] = defaultdict(set)
    for link in links.splitlines():
        path, _, target = link.partition(" ")
        if match := re.search(r"/proc/(\d+)/fd/", path):
            holders[target].add(int(match[1]))
    found = [
        Listener(port, address, family, tuple(sorted(holders[f"socket:[{inode}]"])))
        for table in (tcp, tcp6)
        for address, family, port, inode in _listening(table)
    ]
    return tuple(sorted(found, key=lambda listener: (listener.port, listener.family, listener.address)))


def _listening(table: str) -> Iterator[tuple[str, Literal["ipv4", "ipv6"], int, str]]:
    """Address, family, port and inode of the rows of /proc/net/tcp or tcp6 that are in state LISTEN (0A)."""
    for row in table.splitlines()[1:]:
        fields = row.split()
        if len(fields) < 10:
            raise ValueError(f"unexpected row {row!r}")
        local, state, inode = fields[1], fields[3], fields[9]
        if state != "0A":
            continue
        digits, _, port = local.partition(":")
        # The kernel prints the address as 32-bit words in its own byte order: little-endian on x86-64 and arm64.
        raw = b"".join(bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8))
        yield str(ipaddress.ip_address(raw)), "ipv4" if len(raw) == 4 else "ipv6", int(port, 16), inode


# Three answers: the files, who has one open, who has one mapped. "--" can be no record of the first two. The arguments
# are the pids to look into, as patterns of file names.
_SHM = r"""
export LC_ALL=C
find /dev/shm -xdev -type f -printf '%s %U %p\0'; printf '%s\0' --
for pid; do find /proc/$pid/fd -lname '/dev/shm/*' -printf '%p %l\0'; done; printf '%s\0' --
for pid; do grep -H ' /dev/shm/' /proc/$pid/maps; done
"""
_DELETED = " (deleted)"


@dataclass(frozen=True)
class _Shm:
    """`users` by path as the kernel shows it; `all_seen`: no process refused us a look."""

    files: dict[str, tuple[int, int]]
    users: dict[str, set[int]]
    all_seen: bool


def _read_shm(host: Host, *pids: str) -> _Shm:
    done = host.run(["sh", "-c", _SHM, "sh", *pids], deadline_s=_DEADLINE_S, check=False)
    records = done.stdout.decode(errors="surrogateescape").split("\0")
    if records.count("--") != 2:
        raise OperationFailed(f"cannot list /dev/shm of {host.name}", why=done.stderr.decode(errors="replace").strip())
    first = records.index("--")
    second = records.index("--", first + 1)
    files = {}
    for record in records[:first]:
        size, owner, path = record.split(" ", 2)
        files[path] = (int(size), int(owner))
    users: dict[str, set[int]] = defaultdict(set)
    for record in records[first + 1 : second]:
        link, _, target = record.partition(" ")
        users[target].add(int(link.split("/")[2]))
    for line in records[-1].splitlines():
        maps, _, mapping = line.partition(":")
        # address, permissions, offset, device, inode, path; the kernel writes a newline in a path as \012.
        target = mapping.split(maxsplit=5)[5].replace("\\012", "\n")
        users[target].add(int(maps.split("/")[2]))
    return _Shm(files, dict(users), all_seen=b"Permission denied" not in done.stderr)


def shm_segments(host: Host, pids: Collection[int]) -> tuple[ShmSegment, ...]:
    """The files under /dev/shm that any of `pids` has open or mapped, by path."""
    wanted = set(pids)
    shm = _read_shm(host, *(str(pid) for pid in wanted))
    found = []
    for target, users in sorted(shm.users.items()):
        # Only when no file has that very name does the suffix mean that the name is gone.
        deleted = target.endswith(_DELETED) and target not in shm.files
        if users & wanted:
            path = target.removesuffix(_DELETED) if deleted else target
            found.append(ShmSegment(path, tuple(sorted(users & wanted)), deleted))
    return tuple(found)


def shm_listing(host: Host) -> tuple[ShmFile, ...]:
    """Every file in /dev/shm, by path, and which processes use it."""
    shm = _read_shm(host, "[0-9]*")
    found = []
    for path, (size, owner) in sorted(shm.files.items()):
        pids = tuple(sorted(shm.users.get(path, ())))
        found.append(ShmFile(path, size, owner, pids, in_use=True if pids else (False if shm.all_seen else None)))
    return tuple(found)


def marked_processes(host: Host, variable: str, values: Collection[str] | None = None) -> dict[int, str]:
    """Processes that were started with `variable` set (to one of `values`), as pid -> value, as far as we may look."""
    # grep -z reads an environment as the NUL-separated records it is. It fails where nothing matches, or for a process
    # that we may not look into; what it found stands all the same.
    script = 'exec grep -azH -e "$1" /proc/[0-9]*/environ 2>/dev/null'
    done = host.run(["sh", "-c", script, "sh", f"^{variable}="], deadline_s=_DEADLINE_S, check=False)
    found: dict[int, str] = {}
    for record in done.stdout.decode(errors="replace").split("\0"):
        path, _, setting = record.partition(":")
        value = setting.partition("=")[2]
        if value and (values is None or value in values):
            found[int(path.split("/")[2])] = value
    return found


def memory_of(host: Host, pids: Collection[int]) -> int:
    """Bytes of memory that these processes have to themselves, shared pages by their share; what we may not look into
    counts as none."""
    if not pids:
        return 0
    script = 'for pid; do grep ^Pss: "/proc/$pid/smaps_rollup"; done 2>/dev/null'
    done = host.run(["sh", "-c", script, "sh", *map(str, pids)], deadline_s=_DEADLINE_S, check=False)
    return sum(int(line.split()[1]) for line in done.text.splitlines()) * 1024


def own_uid(host: Host) -> int:
    """The numeric user that we are on that host."""
    return int(host.run(["id", "-u"], deadline_s=_DEADLINE_S).text)
