"""dsv4ctl status: what runs, and whether it is what was planned."""

import typer

from dsv4ctl.console import Column, Output, command_session
from dsv4ctl.errors import ExitCode
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLUMNS = (
    Column("worker"),
    Column("host"),
    Column("pid", right=True),
    Column("state"),
    Column("age", right=True),
    Column("address"),
    Column("as planned"),
)


@app.command()
def status(profile: ProfileArgument = None, output: OutputOption = Output.TABLE) -> None:
    """Say what runs, and whether it is what was planned."""
    # The verdict stands even when nobody reads to the end (`| head -1`), so its exit code must.
    with command_session("status", output, acting=True) as console:
        from dsv4ctl.findings import errors
        from dsv4ctl.health import stack_status
        from dsv4ctl.hosts.connect import open_host
        from dsv4ctl.live import age_text
        from dsv4ctl.targets import open_target

        with open_target(profile, open_host) as target:
            found = stack_status(target)
        console.target = found.stack
        if not console.machine:
            proven = "proved itself" if found.proven else "not proven"
            since = found.started_at or "an unknown time"
            title = f"{found.stack}  {found.entry_url}  ({found.supervisor}, {proven}, started {since})"
            rows = [
                [
                    view.name,
                    view.host,
                    str(view.pid or "-"),
                    view.word,
                    age_text(view.age_s),
                    view.url.removeprefix("http://"),
                    "unknown" if view.name not in found.drifts else "no" if found.drifts[view.name] else "yes",
                ]
                for view in found.workers
            ]
            console.table(_COLUMNS, rows, title=title)
        for finding in found.findings:
            console.finding(finding)
        console.result(found)
        if errors(found.findings):
            raise typer.Exit(ExitCode.FAILED)
