"""Quoting, against the shells themselves, and what is said about a failed command."""

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.errors import OperationFailed, UsageError
from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.command import check_command, describe, join, last_lines, quote, require_success
from dsv4ctl.hosts.guard import exports

# Surrogates cannot be written to a pipe as UTF-8, and NUL cannot be in an argv.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
TRICKY = st.text(st.sampled_from("\\'\"$`!*?~#&|;<>(){}[] \n\t-=%^ab"), max_size=12)
ARGVS = st.lists(WORDS | TRICKY, min_size=1, max_size=8)
BATCH = settings(max_examples=60, derandomize=True, deadline=None)


@given(ARGVS)
@settings(derandomize=True)
def test_a_line_splits_back_into_its_words(argv: list[str]) -> None:
    assert shlex.split(join(argv)) == argv


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
def test_every_shell_reads_the_same_words(shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")

    @given(ARGVS)
    @BATCH
    def check(argv: list[str]) -> None:
        line = join(["printf", "%s\\0", *argv])
        done = subprocess.run([path, "-c", line], capture_output=True, check=True, timeout=20)
        assert done.stdout.decode().split("\0")[:-1] == argv

    check()


@given(st.dictionaries(st.from_regex(r"X[A-Za-z0-9_]{0,5}", fullmatch=True), WORDS | TRICKY, max_size=4))
@BATCH
def test_exported_values_arrive_as_they_are(env: dict[str, str]) -> None:
    script = exports(env).decode() + "exec env -0"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, timeout=20)
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: seen[name] for name in env} == env


def test_plain_words_stay_readable() -> None:
    assert join(["python", "-m", "sglang.launch_server", "--port=30000", ""]) == (
        "python -m sglang.launch_server --port=30000 ''"
    )
    assert quote("it's") == """'it'"'"'s'"""


@pytest.mark.parametrize("env", [{"": "x"}, {"1A": "x"}, {"A-B": "x"}, {"A=B": "x"}, {"Ä": "x"}, {"A\n": "x"}])
def test_environment_names_are_checked(env: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        check_command(["true"], env)


@pytest.mark.parametrize(("argv", "env"), [([], None), ([""], None), (["a\0"], None), (["a"], {"A": "\0"})])
def test_what_no_process_takes(argv: list[str], env: dict[str, str] | None) -> None:
    with pytest.raises(UsageError):
        check_command(argv, env)


def test_a_command_is_described_on_one_short_line_without_secrets() -> None:
    shown = describe(["serve", "--api-key", "hunter2", "a\nb", "x" * 500])
    assert "hunter2" not in shown
    assert "\n" not in shown
    assert len(shown) <= 200


def test_the_end_of_stderr() -> None:
    assert last_lines(b"") is None
    assert last_lines(b"\n \n") is None
    assert last_lines(b"".join(b"%d\n" % n for n in range(100))) == "95\n96\n97\n98\n99"
    assert last_lines(b"\xff") == "\\xff"


def test_how_it_ended() -> None:
    def message(returncode: int) -> str:
        with pytest.raises(OperationFailed) as caught:
            require_success("gpu1", Completed(("prog",), returncode, b"", b"", 0.1))
        return str(caught.value)

    assert message(3) == "gpu1: prog exited with status 3"
    assert message(-9) == "gpu1: prog was ended by SIGKILL"
    assert message(-128) == "gpu1: prog was ended by a signal"
    done = Completed(("prog",), 0, b"", b"", 0.1)
    assert require_success("gpu1", done) is done
