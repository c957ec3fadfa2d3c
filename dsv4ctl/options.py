"""Options that several commands share, so that they are spelled and explained once."""

from typing import Annotated

import typer

from dsv4ctl.console import Output

ProfileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="A profile's name or file. Absent: DSV4CTL_PROFILE, ./dsv4ctl.toml, then what fits this machine.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people; json or jsonl for programs.", show_default=True)
]
