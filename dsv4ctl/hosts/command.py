"""Commands as data: quoting, the checks before one is started, and the errors of one that failed."""

import re
import signal
from collections.abc import Mapping, Sequence

from dsv4ctl.errors import OperationFailed, UsageError
from dsv4ctl.hosts.base import Completed
from dsv4ctl.redaction import redact_argv

STDERR_LINES = 5
STDERR_CHARS = 600
ARGV_CHARS = 200
WORD_CHARS = 60

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_SPECIAL = re.compile(r"([\\']+)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quote(word: str) -> str:
    """One word for a shell, the same word in sh, bash, zsh and fish.

    Backslashes and apostrophes go between double quotes: within single quotes fish gives a backslash a meaning, and
    the others do not.
    """
    if _PLAIN.fullmatch(word):
        return word
    parts = (part for part in _SPECIAL.split(word) if part)
    return (
        "".join('"' + part.replace("\\", "\\\\") + '"' if part[0] in "\\'" else f"'{part}'" for part in parts) or "''"
    )


def join(argv: Sequence[str]) -> str:
    """A command line that a shell splits back into `argv`."""
    return " ".join(quote(word) for word in argv)


def describe(argv: Sequence[str]) -> str:
    """A command for a person: quoted, secrets hidden, cut to one line."""
    # A script is not shown in an error: its first words are enough to know it by.
    shown = (word if len(word) <= WORD_CHARS else f"{word[: WORD_CHARS - 1]}…" for word in redact_argv(argv))
    line = join(tuple(shown)).replace("\n", " ")
    return line if len(line) <= ARGV_CHARS else line[: ARGV_CHARS - 1] + "…"


def check_command(argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    """Refuse what no process can be given.

    Raises:
        UsageError: an empty argv, a NUL byte, or an environment name that a shell would not take.
    """
    if not argv or not argv[0]:
        raise UsageError("a command needs a program", why=f"argv is {list(argv)!r}")
    for name in env or {}:
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for an environment variable",
                hint="Use letters, digits and underscores, and no digit first.",
            )
    for what, word in [*(("argument", word) for word in argv), *(env or {}).items()]:
        if "\0" in word:
            raise UsageError(f"a NUL byte in {what} of {describe(argv[:1])}")


def last_lines(stderr: bytes) -> str | None:
    """The end of a stderr, for an error's `why`; None when nothing was said."""
    text = stderr[-8 * STDERR_CHARS :].decode(errors="backslashreplace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-STDERR_LINES:])[-STDERR_CHARS:] or None


def ending(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return "was ended by a signal"


def require_success(host: str, completed: Completed) -> Completed:
    """The same, if its exit status is 0.

    Raises:
        OperationFailed: it is not. The message carries the last lines of stderr.
    """
    if completed.returncode == 0:
        return completed
    what = f"{host}: {describe(completed.argv)} {ending(completed.returncode)}"
    raise OperationFailed(what, why=last_lines(completed.stderr))


def cannot_start(host: str, argv: Sequence[str], cwd: str | None, why: str | None) -> OperationFailed:
    """The error of a program that does not exist, may not be run, or whose working directory is not there."""
    where = f" in {cwd}" if cwd is not None else ""
    return OperationFailed(f"{host}: cannot start {quote(argv[0])}{where}", why=why)
