"""dsv4ctl tune-timeout: which inflight timeout does the evidence support, and what does it cost?"""

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
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure times in prefill's inflight queue and recommend a timeout for its watchdog. Changes nothing."""
    with command_session("tune-timeout", output) as console:
        from dsv4ctl.hosts.connect import open_host
        from dsv4ctl.signals import interruptible
        from dsv4ctl.targets import open_target
        from dsv4ctl.tuning.session import checked_window_s, tune

        with interruptible() as interrupts, open_target(profile, open_host) as target:
            console.target = target.name
            window_s = checked_window_s(window, is_recorded=bool(recordings))
            code = tune(console, target, interrupts, window_s=window_s, recordings=recordings or ())
        if code:
            raise typer.Exit(code)
