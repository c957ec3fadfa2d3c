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

from dsv4ctl.errors import OperationFailed, Refused
from dsv4ctl.hosts.base import CommandLog

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

_ANSWER_WITHIN_S = 20.0

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


@contextmanager
def hold_lock(host: "Host", path: str, command: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock `path` of a host while the block runs; `command` tells others what is under way.

    Raises:
        Refused: another dsv4ctl holds it, after `wait_s` seconds of waiting; or the state directory is not writable.
        HostUnreachable
    """
    owner = f"dsv4ctl {command}, pid {os.getpid()} of {getpass.getuser()} on {socket.gethostname()}"
    argv = ["sh", "-c", _SCRIPT, "sh", path, posixpath.dirname(path), owner, f"{wait_s:g}"]
    with host.follow(CommandLog(tuple(argv))) as holder:
        try:
            answer = holder.readline(wait_s + _ANSWER_WITHIN_S)
        except OperationFailed as error:
            raise Refused(
                f"the state directory {posixpath.dirname(path)} on {host.name} cannot be written",
                why=error.why,
                hint="make it writable, or set XDG_STATE_HOME, or the host's state_dir in the profile",
            ) from error
        if answer is None:
            raise Refused(f"{host.name} did not say within {wait_s + _ANSWER_WITHIN_S:g} s whether {path} is locked")
        if answer != "held":
            raise Refused(
                f"another dsv4ctl is at work on this stack on {host.name}: {answer.removeprefix('busy ') or 'unknown'}",
                hint="wait for it, or press Ctrl-C there",
            )
        yield
