"""One root error. Each says what happened, why, and what to do, and carries its exit code.

The exit codes are part of the command line's interface (docs/exit-codes.md); nothing else picks a number.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script may rely on: "unhealthy" (1) and "could not look" (4) are never the same number."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOTHING_RUNNING = 3
    UNREACHABLE = 4
    INCONCLUSIVE = 5
    REFUSED = 6
    VERIFY_FAILED = 7
    DEADLINE = 124
    INTERRUPTED = 130


class Dsv4Error(Exception):
    """The root: a sentence for a person, its cause, the next thing to do, and the exit code.

    Args:
        what: what happened, naming the file, host, role, key or pid it is about.
        why: the cause, if it is known. Never a guess.
        hint: what to do now, if there is something.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, what: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)


class OperationFailed(Dsv4Error):
    """Something we tried did not work (exit 1)."""


class UsageError(Dsv4Error):
    """The command line, a profile or the environment is wrong (exit 2)."""

    exit_code = ExitCode.USAGE


class NothingRunning(Dsv4Error):
    """There is no stack of ours to act on (exit 3)."""

    exit_code = ExitCode.NOTHING_RUNNING


class HostUnreachable(Dsv4Error):
    """We could not look: unknown is not healthy, and it is not broken either (exit 4)."""

    exit_code = ExitCode.UNREACHABLE


class CannotLook(Dsv4Error):
    """Something that had to be read could not be: what is true is unknown (exit 4)."""

    exit_code = ExitCode.UNREACHABLE


class Refused(Dsv4Error):
    """A precheck or the person said no; nothing was changed (exit 6)."""

    exit_code = ExitCode.REFUSED


class VerificationFailed(Dsv4Error):
    """The change was made and did not prove itself (exit 7)."""

    exit_code = ExitCode.VERIFY_FAILED


class DeadlineExceeded(Dsv4Error):
    """What we waited for did not come in time (exit 124)."""

    exit_code = ExitCode.DEADLINE


class Interrupted(Dsv4Error):
    """The person pressed Ctrl-C; `what` says what is left behind (exit 130)."""

    exit_code = ExitCode.INTERRUPTED
