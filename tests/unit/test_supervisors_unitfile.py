"""Unit files: a real systemd reads back exactly what was meant."""

import json
import string
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsv4ctl.errors import OperationFailed
from dsv4ctl.supervisors.base import UnitSpec
from dsv4ctl.supervisors.unitfile import command_line, environment_file, render_target, render_unit
from dsv4ctl.waiting import wait_until
from tests.systemd import UserManager

# Writes down what it was given, as the kernel has it. /proc/self/cmdline ends each argument with a NUL.
TELL = """
import json, pathlib, sys
def read(name):
    return pathlib.Path("/proc/self", name).read_bytes().decode().split("\\0")[:-1]
path = pathlib.Path(sys.argv[1])
told = {"cmdline": read("cmdline"), "environ": read("environ"), "cwd": str(pathlib.Path.cwd())}
path.with_suffix(".new").write_text(json.dumps(told))
path.with_suffix(".new").rename(path)
"""
UNIT = "dsv4-test-unit-0"

# Everything that a process can be given, with what systemd gives a meaning much more often than by chance.
SPECIAL = ["%", "%n", "%%", "$", "${HOME}", "$HOME", "$$", '"', "'", "\\", "\\n", " ", ";", "#", "-", "`"]
special = st.sampled_from(SPECIAL)
NO_CHARACTERS = ["\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0010ffff", "\ud800"]
anything = st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"), max_size=6)
arguments = st.lists(special | anything, max_size=4).map("".join)
controls = "".join(chr(code) for code in range(32) if chr(code) not in "\t\n") + "\x7f"
values = arguments.map(lambda text: "".join(char for char in text if char not in controls))
names = st.text(string.ascii_letters + "_", min_size=1, max_size=8).map(lambda name: f"T_{name}")


def systemctl(*argv: str) -> str:
    done = subprocess.run(["systemctl", "--user", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_inactive(unit: str) -> bool:
    return systemctl("show", unit, "-p", "ActiveState", "--value").strip() == "inactive"


def install(manager: UserManager, name: str, text: str) -> Path:
    path = manager.home / ".config/systemd/user" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def verify(*paths: Path) -> str:
    """What systemd-analyze has to say; it must accept the files."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(arguments, max_size=4),
    st.dictionaries(names, values, max_size=3),
    st.dictionaries(names.map(lambda name: name + "_KEY"), values, max_size=2),
)
@example(["", "--a b", "foo --bar", " --x", "\\", "a\\", '"', ";", "# no", "\x01\x1f\x7f", "ż\u2028"], {}, {})
def test_a_unit_file_runs_exactly_what_it_was_made_from(
    in_user_manager: UserManager,
    tmp_path: Path,
    odd: list[str],
    env: dict[str, str],
    secret: dict[str, str],
) -> None:
    told = tmp_path / "to ld"
    told.unlink(missing_ok=True)
    argv = (sys.executable, "-I", "-S", "-c", TELL, str(told), *odd)
    cwd = tmp_path / "in %n $HOME"
    cwd.mkdir(exist_ok=True)
    secrets_file = tmp_path / "secrets"
    secrets_file.write_text(environment_file(secret))
    text = render_unit(UnitSpec(UNIT, argv, env, str(cwd)), description="100 % odd", secrets_file=str(secrets_file))
    install(in_user_manager, f"{UNIT}.service", text)
    systemctl("daemon-reload")
    systemctl("start", UNIT)
    wait_until(told.exists, deadline_s=10, what="the worker's word", interval_s=0.02)
    given_ = json.loads(told.read_text())
    assert tuple(given_["cmdline"]) == argv
    environ = dict(entry.split("=", 1) for entry in given_["environ"])
    assert {name: value for name, value in environ.items() if name.startswith("T_")} == env | secret
    assert given_["cwd"] == str(cwd)
    wait_until(partial(is_inactive, UNIT), deadline_s=10, what="its end")


def test_a_stack_of_units_is_accepted_started_in_order_and_stopped_by_its_target(
    in_user_manager: UserManager,
) -> None:
    target = "dsv4-test.target"
    first, second = "dsv4-test-first-0", "dsv4-test-second-0"
    services = [f"{first}.service", f"{second}.service"]
    sleep = ("/bin/sleep", "300")
    texts = {
        services[0]: render_unit(UnitSpec(first, sleep), description="one", target=target),
        services[1]: render_unit(
            UnitSpec(second, sleep, {"A": "%b $c"}),
            description="two",
            target=target,
            after=services[:1],
            wants=services[:1],
        ),
        target: render_target(services, description="both"),
    }
    paths = [install(in_user_manager, name, text) for name, text in texts.items()]
    assert verify(*paths) == ""
    systemctl("daemon-reload")
    systemctl("start", target)
    started = [
        int(systemctl("show", unit, "-p", "ActiveEnterTimestampMonotonic", "--value")) for unit in (first, second)
    ]
    assert 0 < started[0] <= started[1]
    systemctl("stop", target)
    for unit in (first, second):  # the target is down at once; its units go after it
        wait_until(partial(is_inactive, unit), deadline_s=10, what=f"the end of {unit}")
    for path in paths:
        path.unlink()
    systemctl("daemon-reload")


def test_options_begin_lines_of_their_own() -> None:
    text = render_unit(UnitSpec(UNIT, ("/bin/engine", "-m", "x", "--port", "1", "--tp", "2")), description="d")
    assert "ExecStart=/bin/engine -m x \\\n    --port 1 \\\n    --tp 2\n" in text


@pytest.mark.parametrize("program", ["-engine", "@engine", "+engine", "!engine", ":engine"])
def test_a_program_that_systemd_would_read_otherwise_is_refused(program: str) -> None:
    with pytest.raises(OperationFailed, match="cannot be a program"):
        command_line([program])


@pytest.mark.parametrize("text", ["\0", *NO_CHARACTERS])
def test_an_argument_that_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(OperationFailed, match="no text"):
        command_line(["engine", text])


@pytest.mark.parametrize("char", [*controls, *NO_CHARACTERS])
def test_a_value_that_systemd_would_drop_is_refused_and_not_shown(char: str) -> None:
    env = {"API_KEY": f"secret{char}"}
    with pytest.raises(OperationFailed, match="API_KEY") as of_file:
        environment_file(env)
    with pytest.raises(OperationFailed, match="API_KEY") as of_unit:
        render_unit(UnitSpec(UNIT, ("/bin/true",), env), description="d")
    assert "secret" not in f"{of_file.value}{of_unit.value}"


@pytest.mark.parametrize("cwd", ["/a\nb", "/a ", "/a\\"])
def test_a_directory_that_systemd_would_read_otherwise_is_refused(cwd: str) -> None:
    with pytest.raises(OperationFailed, match="cannot be said"):
        render_unit(UnitSpec(UNIT, ("/bin/true",), {}, cwd), description="d")
