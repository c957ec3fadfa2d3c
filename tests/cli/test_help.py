"""--help is fast and imports nothing heavy; a wrong command line ends with 2."""

import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from dsv4ctl.app import COMMANDS, app
from tests.engine import DSV4CTL

HEAVY = ("torch", "sglang", "nixl", "triton", "paramiko", "httpx", "rich", "serving")


def test_help_takes_less_than_three_tenths_of_a_second() -> None:
    """The best of five: what is measured is the program, not what else the machine is doing."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([DSV4CTL, "--help"], check=True, capture_output=True)
        times.append(time.monotonic() - began)
    assert min(times) < 0.3


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom dsv4ctl.app import app\n"
        f"try:\n    app({[*arguments, '--help']!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.output


@pytest.mark.parametrize(
    "arguments", [["serv"], ["serve", "--no-such-option"], ["stop", "--grace", "soon"], ["status", "-o", "xml"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_the_version_is_the_packages_own() -> None:
    from dsv4ctl import __version__

    assert CliRunner().invoke(app, ["--version"]).output == f"dsv4ctl {__version__}\n"
