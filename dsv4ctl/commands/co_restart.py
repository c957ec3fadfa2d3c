"""dsv4ctl co-restart: restart prefill and decode as one verified act."""

from typing import Annotated, Literal

import typer

from dsv4ctl.console import Output, command_session
from dsv4ctl.options import OutputOption, ProfileArgument

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def co_restart(
    profile: ProfileArgument = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="Set an environment variable, or any key of the profile. Repeatable."
        ),
    ] = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="K", help="Take an environment variable or a flag out. Repeatable."),
    ] = None,
    role_sets: Annotated[
        list[str] | None,
        typer.Option("--role-set", metavar="ROLE:K=V", help="As --set, for prefill or decode alone. Repeatable."),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(min=0.0, max=86_400.0, metavar="SECONDS", help="How long requests under way may take to end."),
    ] = 30.0,
    only: Annotated[
        Literal["prefill", "decode"] | None,
        typer.Option(help="Restart one side alone; says first whether that is known to be safe."),
    ] = None,
    no_rollback: Annotated[
        bool, typer.Option("--no-rollback", help="If the new configuration does not come up, do not go back.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what changes and the plan; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restart prefill and decode as one verified act.

    What was set at the start stays set; the router runs on, and gets its workers back when they have proven themselves.
    """
    with command_session("co-restart", output, acting=True) as console:
        from dsv4ctl.restart.session import Wanted, run_co_restart

        run_co_restart(
            console,
            Wanted(
                profile=profile,
                sets=tuple(sets or ()),
                unsets=tuple(unsets or ()),
                role_sets=tuple(role_sets or ()),
                drain_s=drain,
                only=only,
                rollback=not no_rollback,
                dry_run=dry_run,
                yes=yes,
            ),
        )
