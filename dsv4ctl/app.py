"""The command line. Each command's module is imported when that command is called, so that --help stays fast."""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "serve": "Bring up the stack of a profile and prove that it answers.",
    "status": "Say what runs, and whether it is what was planned.",
    "stop": "End the stack and prove that nothing of it is left.",
    "co-restart": "Restart prefill and decode as one verified act.",
    "doctor": "Examine hosts, plan and what runs, and say what is wrong and what to do.",
    "probe": "Ask every hop of a request for answers that are known, and say which hop fails.",
    "watch-inflight": "Tell a request that is pinned in prefill's inflight queue from flow.",
    "tune-timeout": "Say which inflight timeout the evidence supports, and what it costs.",
    "logs": "Show or follow the logs of the workers.",
    "profile": "List, show and check profiles.",
}


class _LazyGroup(TyperGroup):
    """Knows the commands by name and first line; imports one only to run it or to show its own help."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - Typer's vendored context type is private
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dsv4ctl.commands.{cmd_name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Launch and operate a patched SGLang stack that serves DeepSeek-V4-Flash with prefill and decode apart.",
)


def _print_version(value: bool) -> None:
    if value:
        from dsv4ctl import __version__

        typer.echo(f"dsv4ctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Options of the program itself."""
    del version


def main() -> None:
    """Entry point of the console script."""
    app()
