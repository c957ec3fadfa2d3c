"""`dsv4ctl profile`, through the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4ctl.app import app
from dsv4ctl.profile.lookup import builtin_profiles

CLI = CliRunner()


@pytest.fixture(autouse=True)
def nobodys_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory and a configuration of our own: what a developer has set up must not show."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DSV4CTL_PROFILE", raising=False)
    return tmp_path


def test_list_shows_every_built_in_profile() -> None:
    result = CLI.invoke(app, ["profile", "list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == sorted(builtin_profiles())


def test_a_profile_of_ones_own_is_listed_also_when_it_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "dsv4ctl" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('extends = "cpu"\nname = "mine"\n')
    (folder / "broken.toml").write_text("name = 3\n")
    listed = json.loads(CLI.invoke(app, ["profile", "list", "-o", "json"]).stdout)["result"]
    by_name = {item["name"]: item for item in listed}
    assert by_name["mine"]["workers"] == ["prefill-0", "decode-0"]
    assert "name must be" in by_name["broken"]["problem"]


def test_ones_own_profile_may_extend_the_built_in_one_it_hides(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "dsv4ctl" / "profiles"
    folder.mkdir(parents=True)
    (folder / "cpu.toml").write_text('extends = "cpu"\n[router]\nport = 31000\n')
    shown = json.loads(CLI.invoke(app, ["profile", "show", "cpu", "-o", "json"]).stdout)["result"]
    assert shown["profile"]["router"]["port"] == 31000
    assert shown["path"] == str(folder / "cpu.toml")


def test_show_prints_a_profile(tmp_path: Path) -> None:
    result = CLI.invoke(app, ["profile", "show", "cpu-mooncake", "--set", "router.port=31000"])
    assert result.exit_code == 0
    (tmp_path / "again.toml").write_text(result.stdout)
    again = CLI.invoke(app, ["profile", "show", "./again.toml"])
    assert again.stdout == result.stdout
    assert "port = 31000" in result.stdout


def test_show_origin_says_where_each_value_was_set() -> None:
    result = CLI.invoke(app, ["profile", "show", "cpu-tp2", "--origin", "--set", "SGLANG_LOG_MS=1"])
    rows = {" ".join(cells[:-2]): cells[-2:] for cells in (line.split() for line in result.stdout.splitlines())}
    assert rows["prefill-0 env SGLANG_LOG_MS"] == ["1", "--set"]
    assert rows["decode-0 args tp-size"][1].startswith(str(builtin_profiles()["cpu-tp2"]))
    assert rows["decode-0 args device"][1].startswith(str(builtin_profiles()["cpu"]))
    assert rows["supervisor"][0] == '"process"'
    assert rows["decode.workers[0].listen"] == ['"127.0.0.1"', "default"]


def test_check_says_what_it_checked_against() -> None:
    result = CLI.invoke(app, ["profile", "check", "cpu"])
    assert result.exit_code == 0
    assert result.stdout.startswith("cpu: right")
    assert "names for local checked against" in result.stderr


def test_check_finds_a_misspelt_name(tmp_path: Path) -> None:
    (tmp_path / "dsv4ctl.toml").write_text('extends = "cpu"\n[env]\nSGLANG_USE_CPU_ENGIN = 1\n')
    result = CLI.invoke(app, ["profile", "check", "-o", "json"])
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["what"].startswith("dsv4ctl.toml:3: env.SGLANG_USE_CPU_ENGIN is not known to sglang 0.5.23")
    assert error["what"].endswith("did you mean SGLANG_USE_CPU_ENGINE?")


@pytest.mark.parametrize("verb", ["show", "check"])
def test_a_profile_that_is_not_there(verb: str) -> None:
    result = CLI.invoke(app, ["profile", verb, "cpuu"])
    assert result.exit_code == 2
    assert 'there is no profile "cpuu"; did you mean "cpu"?' in result.stderr
