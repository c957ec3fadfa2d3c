"""What `dsv4ctl tune-timeout` was asked for, and who does it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import ExitCode, UsageError
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.signals import interruptible
from dsv4ctl.targets import open_target

if TYPE_CHECKING:
    from pathlib import Path

    from dsv4ctl.console import Console

AUTO = "auto"
SHORTEST_S, LONGEST_S = 0.5, 86_400.0
"""What an engine takes; 0 is none at all. docs/inflight.md."""


@dataclass(frozen=True)
class Wanted:
    """What the command line says."""

    profile: str | None
    window_s: float | None
    recordings: "tuple[Path, ...]"
    apply: str | None
    soak_s: float | None
    undo: bool
    verify: bool
    verify_with_s: float | None
    dry_run: bool
    yes: bool


def run_tune_timeout(console: "Console", wanted: Wanted) -> ExitCode:
    """Measure, apply, undo or verify.

    Raises:
        UsageError: the command line asks for two of them, or for no timeout.
        Dsv4Error: as what is done does.
    """
    seconds = _checked(wanted)
    with interruptible() as interrupts, open_target(wanted.profile, open_host) as target:
        console.target = target.name
        if wanted.verify:
            from dsv4ctl.tuning.verify_session import verify

            return verify(
                console, target, interrupts, asked_s=wanted.verify_with_s, yes=wanted.yes, dry_run=wanted.dry_run
            )
        from dsv4ctl.tuning.session import Evidence, checked_window_s, look, tune, with_room

        window_s = checked_window_s(wanted.window_s, is_recorded=bool(wanted.recordings))
        evidence = Evidence(window_s, wanted.recordings)
        if not wanted.undo and wanted.apply is None:
            return tune(console, target, interrupts, evidence)
        from dsv4ctl.tuning.apply_session import Asked, Recommended, apply, undo

        asked = Asked(wanted.profile, seconds, wanted.soak_s, yes=wanted.yes, dry_run=wanted.dry_run)
        if wanted.undo:
            return undo(console, target, interrupts, asked)

        def recommend() -> Recommended | None:
            looked = look(console, target, interrupts, evidence)
            found = with_room(console, looked)
            return None if found is None else Recommended(found.cost, looked.document)

        return apply(console, target, interrupts, asked, recommend)


def _checked(wanted: Wanted) -> float | None:
    """The timeout that was named; None where none was.

    Raises:
        UsageError
    """
    acts = [name for name, is_on in (("--apply", wanted.apply is not None), ("--undo", wanted.undo)) if is_on]
    acts += ["--verify"] if wanted.verify else []
    if len(acts) > 1:
        raise UsageError(f"{' and '.join(acts)} cannot be asked for at once", hint="one after the other")
    if wanted.verify_with_s is not None and not wanted.verify:
        raise UsageError("--verify-with belongs to --verify", hint="add --verify")
    if (wanted.window_s is not None or wanted.recordings) and acts and wanted.apply != AUTO:
        raise UsageError(
            f"--window and --from are evidence for a recommendation, and {acts[0]} asks for none",
            hint=f"leave them out, or `--apply {AUTO}`",
        )
    if wanted.soak_s is not None and wanted.apply is None:
        raise UsageError("--soak belongs to --apply", hint="add --apply, or leave it out")
    if wanted.dry_run and not acts:
        raise UsageError("--dry-run: measuring changes nothing anyway", hint="it goes with --apply, --undo or --verify")
    if wanted.apply is None or wanted.apply == AUTO:
        return None
    try:
        seconds = round(float(wanted.apply), 3)
    except ValueError as error:
        raise UsageError(f"--apply {wanted.apply}: must be a number of seconds, or {AUTO}") from error
    if not (seconds == 0 or SHORTEST_S <= seconds <= LONGEST_S):
        raise UsageError(
            f"--apply {wanted.apply}: an engine takes 0 (no watchdog) or {SHORTEST_S:g} to {LONGEST_S:g} seconds"
        )
    return seconds
