"""The TCP connections between two processes: what they have moved, and how to lose them.

A connection is lost as a cable or a firewall loses it for a program: its socket is shut down behind the back of the
process that holds it. `pidfd_getfd` (Linux 5.6) lends the socket; it takes the right to trace the process, no tool, no
rule in a firewall and no namespace.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PIDFD_GETFD = 438
_ESTABLISHED = "01"
_BYTES_ACKED = 120
"""Where struct tcp_info has tcpi_bytes_acked."""


@dataclass(frozen=True)
class Link:
    """One established connection, from the side of `pid`."""

    pid: int
    fd: int
    local: str
    peer: str


def _sockets(pid: int) -> dict[str, int]:
    """The descriptors of a process's sockets by inode."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                found[target[8:-1]] = int(entry.name)
    return found


def _established() -> Iterator[tuple[str, str, str]]:
    """Local end, peer and inode of each IPv4 connection."""
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        if fields[3] == _ESTABLISHED:
            yield fields[1], fields[2], fields[9]


def links_between(pid: int, other: int) -> tuple[Link, ...]:
    """The connections that `pid` has with `other`, by descriptor.

    Raises:
        OSError: one of them has ended.
    """
    mine, theirs = _sockets(pid), _sockets(other)
    rows = list(_established())
    ends = {local for local, _, inode in rows if inode in theirs}
    found = [Link(pid, mine[inode], local, peer) for local, peer, inode in rows if inode in mine and peer in ends]
    return tuple(sorted(found, key=lambda link: link.fd))


def moved_bytes(links: tuple[Link, ...]) -> int:
    """Bytes that `pid` of these links has sent through them and the other side has acknowledged, ever.

    Raises:
        OSError: a process has ended or closed a connection, or may not be traced by us.
    """
    return sum(_acknowledged(link) for link in links)


def lose(link: Link) -> None:
    """Shut the connection down in both directions: both ends see it closed.

    Raises:
        OSError: the process has ended, has closed it already, or may not be traced by us.
    """
    with _borrowed(link) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _acknowledged(link: Link) -> int:
    with _borrowed(link) as connection:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (count,) = struct.unpack_from("Q", told, _BYTES_ACKED)
    return int(count)


def _borrowed(link: Link) -> socket.socket:
    """A second descriptor of the connection, to be closed at once: while it is open, the connection outlives `pid`."""
    pidfd = os.pidfd_open(link.pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        borrowed = libc.syscall(_PIDFD_GETFD, pidfd, link.fd, 0)
        if borrowed < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot borrow socket {link.fd} of process {link.pid}: {os.strerror(number)}")
    finally:
        os.close(pidfd)
    return socket.socket(fileno=borrowed)
