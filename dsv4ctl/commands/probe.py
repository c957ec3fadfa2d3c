"""dsv4ctl probe: which hop of a request's path fails."""

from pathlib import Path
from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.errors import UsageError
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def probe(
    profile: ProfileArgument = None,
    via: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A hop before the stack, nearest to the client first. Repeatable."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=50, help="Conversations of so many rounds, on kept and on fresh connections."
        ),
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(metavar="C", min=1, max=16, help="How many conversations of each kind at each hop at once.")
    ] = 1,
    gaps: Annotated[
        str | None, typer.Option(metavar="S,S,...", help="Seconds that lie between rounds, in turn. Absent: 0,4,6,60.")
    ] = None,
    grow: Annotated[int, typer.Option(metavar="TOKENS", min=0, help="Tokens that each round adds, about.")] = 256,
    hang_after: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            max=86_400.0,
            help="Seconds without an event after which a request hangs. Absent: as the profile says.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name. Absent: as the stack serves it.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="JSON", help="What every request's body holds besides.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the key that is sent as a bearer token.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before more than 50 requests to a stack with GPUs.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask every hop of a request's path for generations whose right answer is known, and say which hop fails."""
    # The verdict stands even when nobody reads to the end, so its exit code must.
    with command_session("probe", output, acting=True) as console:
        from dsv4ctl.probe.questions import USUAL_GAPS, gaps_of
        from dsv4ctl.probe.session import Wanted, run_probe

        if gaps is not None and not rounds:
            raise UsageError("--gaps lie between rounds, and there are none", hint="add --rounds N")
        wanted = Wanted(
            profile=profile,
            vias=tuple(via or ()),
            rounds=rounds,
            concurrency=concurrency,
            gaps_s=gaps_of(gaps or USUAL_GAPS),
            grow_tokens=grow,
            hang_after_s=hang_after,
            model=model,
            api_key_file=api_key_file,
            request=request,
            yes=yes,
        )
        raise typer.Exit(run_probe(console, wanted))
