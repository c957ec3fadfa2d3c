"""Reading and writing files of a host with commands of that host.

Not with SFTP: a host may have it turned off, paramiko's client for it is not safe to use from several threads and
cannot fsync, and a write that loses its connection would leave its temporary file. A guarded command (guard.py) has
none of these problems, and one way of running things has one set of deadlines and errors.
"""

import errno
import os

from dsv4ctl.hosts.base import Completed

# $1 which bytes, as `tail -c` has it; $2 path; $3 how many at most, or empty. The message of `tail` tells what went
# wrong, so its language is fixed.
_READ = """
LC_ALL=C
export LC_ALL
[ "$3" ] || exec tail -c "$1" -- "$2"
tail -c "$1" -- "$2" | head -c "$3"
"""

# $1 path, $2 mode, $3 size. Input that is cut short must not become the file.
_WRITE = """
LC_ALL=C
export LC_ALL
umask 077
directory=$(dirname -- "$1")
mkdir -p -- "$directory" && temporary=$(mktemp -- "$directory/.$(basename -- "$1").XXXXXX") || exit
trap 'rm -f -- "$temporary"' EXIT
trap 'exit 1' HUP INT PIPE TERM
head -c "$3" >"$temporary" || exit
[ "$(wc -c <"$temporary")" -eq "$3" ] || { echo 'the input was cut short' >&2; exit 1; }
chmod "$2" -- "$temporary" && sync -- "$temporary" && mv -fT -- "$temporary" "$1" && sync -- "$directory"
"""

_ERRNOS = tuple(
    getattr(errno, name)
    for name in ("ENOENT", "EACCES", "EPERM", "EISDIR", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "ESRCH", "EINVAL", "ENODEV")
)


def read_argv(path: str, offset: int, limit: int | None) -> list[str]:
    """The command that prints the bytes `Host.read` asks for."""
    which = f"+{offset + 1}" if offset >= 0 else str(-offset)
    return ["/bin/sh", "-c", _READ, "read", which, _explicit(path), "" if limit is None else str(limit)]


def write_argv(path: str, mode: int, size: int) -> list[str]:
    """The command that replaces a file with the `size` bytes of its input, as `Host.write` promises it."""
    return ["/bin/sh", "-c", _WRITE, "write", _explicit(path), f"{mode:04o}", str(size)]


def _explicit(path: str) -> str:
    """No path is taken for an option or for standard input."""
    return path if path.startswith("/") else f"./{path}"


def read_error(host: str, path: str, completed: Completed) -> OSError | None:
    """What went wrong with a read, as the error a local file would give; None when nothing did.

    Without a message all went well, whatever the status: with a limit the status is not `tail`'s.
    """
    if not completed.stderr:
        return None
    message = completed.stderr.decode(errors="backslashreplace").strip().splitlines()[-1]
    code = next((code for code in _ERRNOS if message.endswith(os.strerror(code))), errno.EIO)
    return os_error(code, host, path, why=None if code != errno.EIO else message)


def os_error(code: int, host: str, path: str, why: str | None = None) -> OSError:
    """An OSError (FileNotFoundError and its kin, by `code`) that names the host beside the path."""
    return OSError(code, f"{why or os.strerror(code)} (on {host})", path)
