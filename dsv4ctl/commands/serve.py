"""dsv4ctl serve: bring up the stack of a profile and prove that it answers."""

from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def serve(
    profile: ProfileArgument = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the stack has proved itself; leave it running.")
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="Set an environment variable, or any key of the profile. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands and the plan; change nothing.")
    ] = False,
    emit: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="systemd DIR", help="Write unit files into DIR; start nothing."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring up the stack of a profile and prove that it answers.

    In the foreground it stays until Ctrl-C, which ends the whole stack.
    """
    with command_session("serve", output, acting=True) as console:
        from dsv4ctl.errors import UsageError
        from dsv4ctl.serving_session import emit_units, print_plan, run_serve

        if profile == "":
            raise UsageError("an empty name is no profile", hint="leave it out, or name one")
        if emit is not None and (dry_run or detach):
            raise UsageError("--emit starts nothing, so it goes with neither --dry-run nor --detach")
        if emit is not None:
            emit_units(console, profile, sets or [], kind=emit[0], directory=emit[1])
        elif dry_run:
            print_plan(console, profile, sets or [])
        else:
            run_serve(console, profile, sets or [], detach=detach)
