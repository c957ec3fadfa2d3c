"""dsv4ctl stop: end the stack and prove that nothing of it is left."""

from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def stop(
    profile: ProfileArgument = None,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long a worker may take to end by itself.")
    ] = 5.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """End the stack, and prove that no process, port or shared memory of it is left."""
    with command_session("stop", output, acting=True) as console:
        from dsv4ctl.stopping_session import run_stop

        run_stop(console, profile, grace_s=grace, yes=yes)
