"""dsv4ctl logs: show or follow the logs of the workers."""

from typing import Annotated

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def logs(
    role: Annotated[
        str | None, typer.Argument(metavar="ROLE", help="A worker (prefill-0) or a role (decode); absent: all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines to show.")] = 50,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", help="The stack's profile, when it is not the only one.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or follow the logs of the workers; with several, each line names its worker."""
    with command_session("logs", output) as console:
        from dsv4ctl.hosts.connect import open_host
        from dsv4ctl.logs import print_logs
        from dsv4ctl.signals import interruptible
        from dsv4ctl.targets import open_target

        with interruptible() as interrupts, open_target(profile, open_host, ended=True) as target:
            console.target = target.name
            print_logs(console, target, role, follow=follow, lines=lines, interrupts=interrupts)
