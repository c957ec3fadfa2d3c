"""The guard: a few lines of POSIX sh in front of a command, so that the command cannot outlive us.

sshd does not end a command whose channel or connection is gone, and a deadline kept only on this side of a broken
connection is not kept. So the guard starts a watch beside the command, in the same session, and then becomes the
command (`exec`): exit status and signals are the command's own. The watch ends everything in the session, SIGTERM
first and SIGKILL a second later,

- `HELD`: when its standard input ends, or when no line came on it for `lease_s` seconds. The input is the channel, and
  the command gets /dev/null. We hold a line open and renew it; whoever loses us loses the command.
- `PASSED`: after `lease_s` seconds, or within a second of the death of the sshd process that serves the connection. The
  input belongs to the command here, so nothing can be held.

When the command has ended by itself, the watch goes too and touches nothing: what the command left running in the
background stays. A process that made a session of its own is never touched.
"""

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from dsv4ctl.hosts.command import quote

NOT_STARTED = b"\x1edsv4ctl: not started\n"
STARTED = b"\x1edsv4ctl: started\n"

# $1 seconds, $2 held|passed, $3 bytes of `export` lines at the start of stdin, $4 working directory or empty; argv.
# The environment comes over stdin, because every user of a machine can read an argv. It is set last: the guard's own
# work goes by the host's PATH, and no name in it can be one of the guard's.
# `members` are the processes of the session, without the watch and what it runs itself to find them. In /proc/PID/stat,
# after the name in parentheses, come state, parent, group and session.
SCRIPT = r"""
guard_lease=$1 guard_input=$2 guard_exports=$3 guard_cwd=$4 guard_main=$$ guard_settings=
shift 4
[ "$guard_exports" -eq 0 ] || guard_settings=$(head -c "$guard_exports")
members() {
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$guard_main" -v watch="$guard_watch" '
        { pid = $1; sub(/^.*\) /, ""); if ($4 == session && $1 != "Z") parent[pid] = $2 }
        END {
            for (pid in parent) {
                above = parent[pid]
                if (pid != watch && above != watch && !((above in parent) && parent[above] == watch)) print pid
            }
        }'
}
signal_session() {
    found=
    for pid in $(members); do
        kill "-$1" "$pid" && found=yes
    done
    [ "$found" ]
}
watch() {
    read -r guard_watch rest </proc/self/stat
    if [ "$guard_input" = held ]; then
        while timeout "$guard_lease" sh -c 'read -r line'; do :; done
    else
        while [ "$guard_lease" -gt 0 ] && [ -d "/proc/$guard_main" ] && [ -d "/proc/$PPID" ]; do
            sleep 1
            guard_lease=$((guard_lease - 1))
        done
    fi
    [ -d "/proc/$guard_main" ] || exit 0
    signal_session TERM
    for tenth in 1 2 3 4 5 6 7 8 9 10; do
        signal_session 0 || exit 0
        sleep 0.1
    done
    for try in 1 2 3 4 5; do
        signal_session KILL || exit 0
    done
}
if [ "$guard_input" = held ]; then
    exec 3<&0 </dev/null
    (exec <&3 3<&- >/dev/null 2>&1; watch) &
    exec 3<&-
else
    (exec </dev/null >/dev/null 2>&1; watch) &
fi
trap 'printf "\036dsv4ctl: not started\n" >&2' EXIT
[ -z "$guard_cwd" ] || cd -- "$guard_cwd" >/dev/null || exit
case $1 in
    */*) [ -f "$1" ] && [ -x "$1" ] || { printf '%s: no executable file\n' "$1" >&2; exit 126; } ;;
esac
eval "$guard_settings"
printf '\036dsv4ctl: started\n'
printf '\036dsv4ctl: started\n' >&2
exec "$@"
"""


# "dsv4ctl-guard: 49: exec: " of dash, "dsv4ctl-guard: line 49: " of bash.
_SHELL_PREFIX = re.compile(rb"^dsv4ctl-guard: (?:line )?\d+: (?:exec: )?", re.MULTILINE)


class Input(StrEnum):
    """Whom the standard input belongs to: the watch, or the command."""

    HELD = "held"
    PASSED = "passed"


def exports(env: Mapping[str, str]) -> bytes:
    """What to send before anything else on the input of a guarded command, to set its environment."""
    lines = (f"export {name}={quote(value)}\n" for name, value in env.items())
    return "".join(lines).encode(errors="surrogateescape")


def guarded(
    argv: Sequence[str], *, lease_s: float, held: Input, exports_size: int = 0, cwd: str | None = None
) -> list[str]:
    """The argv that runs `argv` under guard. `lease_s` is rounded up to whole seconds; 0 with HELD means for ever."""
    settings = [str(math.ceil(lease_s)), held, str(exports_size), cwd or ""]
    return ["/bin/sh", "-c", SCRIPT, "dsv4ctl-guard", *settings, *argv]


def after_start(output: bytes) -> bytes | None:
    """What the command itself wrote, to either stream: all after the guard's mark. None when the mark has not come.

    What the login shell's start files print comes before the mark.
    """
    _, mark, rest = output.partition(STARTED)
    return rest if mark else None


def not_started(stderr: bytes) -> bytes | None:
    """Why the command could not be started, in the shell's words; None when it was started."""
    said, mark, _ = stderr.rpartition(NOT_STARTED)
    said = said.rpartition(STARTED)[2]
    return _SHELL_PREFIX.sub(b"", said) if mark else None
