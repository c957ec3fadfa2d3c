"""`dsv4ctl profile list | show | check`."""

from typing import Annotated

import typer

from dsv4ctl.console import Column, Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, add_completion=False, help="List, show and check profiles."
)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="As of serve: shown or checked as if it were in the profile."),
]


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """List the profiles that can be named, with what each is for."""
    with command_session("profile list", output) as console:
        from dsv4ctl.profile.here import list_here

        listed = list_here()
        if not console.machine:
            console.table(
                [Column("name"), Column("workers", right=True), Column("description", fold=True)],
                [(item.name, str(len(item.workers)), item.description or f"wrong: {item.problem}") for item in listed],
            )
        console.result(listed)


@app.command()
def show(
    profile: ProfileArgument = None,
    origins: Annotated[bool, typer.Option("--origin", help="Every effective value with where it was set.")] = False,
    sets: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a profile as it is in effect, all that it extends included."""
    with command_session("profile show", output) as console:
        from dsv4ctl.profile.here import gpus_here, load_here
        from dsv4ctl.profile.show import as_data, rows, to_toml

        loaded = load_here(profile, sets or ())
        console.target = loaded.profile.name
        if not console.machine and origins:
            console.table(
                [Column("key"), Column("value", fold=True), Column("from", fold=True)],
                [(key, value, origin.place) for key, value, origin in rows(loaded)],
            )
        elif not console.machine:
            console.data(to_toml(loaded.profile).rstrip("\n"))
        gpus = gpus_here(loaded)
        if not console.machine:
            for worker in gpus:
                console.say(str(worker))
        console.result({**as_data(loaded), "gpus": gpus})


@app.command()
def check(
    profile: ProfileArgument = None,
    sets: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a profile: its keys, its values, and every name of an environment variable or flag in it."""
    with command_session("profile check", output) as console:
        from dsv4ctl.profile.here import lint_here, load_here

        loaded = load_here(profile, sets or ())
        console.target = loaded.profile.name
        linted = lint_here(loaded)
        for note in linted.notes:
            console.warn(note)
        for finding in linted.findings:
            console.finding(finding)
        for host, source in linted.sources.items():
            console.say(f"names for {host} checked against {source}")
        linted.raise_problems()
        if not console.machine:
            console.data(f"{loaded.profile.name}: right ({loaded.found.shown})")
        console.result({"path": str(loaded.found.path), "name": loaded.profile.name, "names_from": linted.sources})
