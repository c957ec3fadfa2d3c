"""One act at a time on a stack: a lock on the host, held by a process there whose life is tied to ours.

The kernel lets go of the lock when that process ends, and it ends with us, with our connection, and with the host. So
there is no stale lock to judge, and nothing to expire under a start that takes a quarter of an hour.
"""

import getpass
import os
import posixpath
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsv4ctl.errors import HostUnreachable, OperationFailed, Refused
from dsv4ctl.hosts.base import FOLLOWER_LEASE_S, CommandLog

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host, LogStream

_ANSWER_WITHIN_S = 20.0
# The host ends the old holder when it notices the loss: a moment after we do, or when its lease is over, if the network
# went away without a word.
_RETAKE_WITHIN_S = FOLLOWER_LEASE_S + 15.0

# $1 the lock's file, $2 its folder, $3 who we are, $4 how long to wait. Opening with <> neither truncates what the
# holder wrote nor fails when the file is not there yet.
_SCRIPT = r"""
mkdir -p -m 700 -- "$2" && exec 9<>"$1" || exit 1
if flock -w "$4" 9; then
    printf '%s\n' "$3" >"$1" || exit 1
    echo held
    exec sleep infinity
fi
printf 'busy %s\n' "$(head -n 1 -- "$1")"
"""


class LockLost(Refused):
    """A lock that went with its connection could not be taken again: somebody else may be at work (exit 6)."""


class HeldLock:
    """A lock that is held. It goes with a lost connection; `ensure` takes it again, or says who has it now."""

    def __init__(self, host: "Host", path: str, command: str) -> None:
        self._host = host
        self._path = path
        self._owner = f"dsv4ctl {command}, pid {os.getpid()} of {getpass.getuser()} on {socket.gethostname()}"
        self._holder: LogStream | None = None

    def take(self, wait_s: float) -> None:
        """Take it, waiting at most `wait_s` seconds for whoever has it.

        Raises:
            Refused: another dsv4ctl has it; or the state directory is not writable.
            HostUnreachable
        """
        folder = posixpath.dirname(self._path)
        argv = ("sh", "-c", _SCRIPT, "sh", self._path, folder, self._owner, f"{wait_s:g}")
        holder = self._host.follow(CommandLog(argv))
        try:
            answer = holder.readline(wait_s + _ANSWER_WITHIN_S)
        except OperationFailed as error:
            holder.close()
            raise Refused(
                f"the state directory {folder} on {self._host.name} cannot be written",
                why=error.why,
                hint="make it writable, or set XDG_STATE_HOME, or the host's state_dir in the profile",
            ) from error
        if answer == "held":
            self._holder = holder
            return
        holder.close()
        if answer is None:
            raise Refused(f"{self._host.name} did not say within {wait_s + _ANSWER_WITHIN_S:g} s whether it is locked")
        raise Refused(
            f"another dsv4ctl is at work on this stack on {self._host.name}: "
            f"{answer.removeprefix('busy ') or 'it does not say which'}",
            hint="wait for it, or end it",
        )

    def ensure(self) -> None:
        """Still hold it: a lock that went with its connection is taken again.

        Raises:
            LockLost: another dsv4ctl took it meanwhile.
            HostUnreachable
        """
        if self._holder is not None:
            try:
                # The holder says nothing more: no line is the good answer.
                self._holder.readline(0.0)
            except (HostUnreachable, OperationFailed):
                self.release()
        if self._holder is None:
            try:
                self.take(_RETAKE_WITHIN_S)
            except Refused as error:
                raise LockLost(error.what, why=error.why, hint=error.hint) from error

    def release(self) -> None:
        """Let go of it."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None


@contextmanager
def hold_lock(host: "Host", path: str, command: str, *, wait_s: float = 0.0) -> Iterator[HeldLock]:
    """Hold the lock `path` of a host while the block runs; `command` tells others what is under way.

    Raises: as `HeldLock.take`.
    """
    lock = HeldLock(host, path, command)
    lock.take(wait_s)
    try:
        yield lock
    finally:
        lock.release()
