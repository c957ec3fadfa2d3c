"""dsv4ctl doctor: what is wrong with the box, the plan and what runs."""

from pathlib import Path
from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    profile: ProfileArgument = None,
    only: Annotated[
        str | None, typer.Option(metavar="CODE", help="Look for this finding alone, as docs/findings names it.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also move data between the ranks as KV moves, and check every word of it.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what a bug report needs to a .tar.zst or .tar.gz, known secrets out."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a deep look at hosts whose engines run.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Examine the hosts, the plan and what runs, and say what is wrong and what to do about it."""
    # The verdict stands even when nobody reads to the end, so its exit code must.
    with command_session("doctor", output, acting=True) as console:
        from dsv4ctl.doctor.report import Wanted, run_doctor

        raise typer.Exit(run_doctor(console, Wanted(profile, only, deep, bundle, yes)))
