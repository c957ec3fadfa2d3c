"""dsv4ctl tune-timeout: which inflight timeout does the evidence support, what does it cost, and does it fire?"""

from pathlib import Path
from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def tune_timeout(
    profile: ProfileArgument = None,
    window: Annotated[
        float | None,
        typer.Option(max=604800, help="Seconds to look at what leaves the inflight queue; absent: 600, 0 with --from."),
    ] = None,
    recordings: Annotated[
        list[Path] | None,
        typer.Option("--from", help="What `watch-inflight --record` wrote, as evidence; may be given again."),
    ] = None,
    apply: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS|auto",
            help="Set a timeout without a restart, and write it into the profile; auto: what is recommended.",
        ),
    ] = None,
    soak: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=3000.0,
            metavar="SECONDS",
            help="How long to watch what was applied; a misfire takes it back. Absent: 60 or twice the timeout.",
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the last --apply back.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that the watchdog fires, with a canary that is pinned on purpose.")
    ] = False,
    verify_with: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            max=1700.0,
            metavar="SECONDS",
            help="The timeout for --verify. Absent: 30, or less if that is safe.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure times in prefill's inflight queue and recommend a timeout for its watchdog.

    Nothing is changed without --apply, --undo or --verify.
    """
    acts = bool(apply or undo or verify)
    with command_session("tune-timeout", output, acting=acts and not dry_run) as console:
        from dsv4ctl.tuning.command import Wanted, run_tune_timeout

        code = run_tune_timeout(
            console,
            Wanted(
                profile=profile,
                window_s=window,
                recordings=tuple(recordings or ()),
                apply=apply,
                soak_s=soak,
                undo=undo,
                verify=verify,
                verify_with_s=verify_with,
                dry_run=dry_run,
                yes=yes,
            ),
        )
        if code:
            raise typer.Exit(code)
