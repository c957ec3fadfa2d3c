"""`python -m serving`: its answers go where they are sent, or it says why not, and never with a trace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("patches", "hazards", "knobs")


def asked(
    *arguments: str, shell: str = "", unbuffered: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in a shell, `shell` behind it; its exit status is that of the command."""
    command = f'"{sys.executable}" -m serving "$@" {shell}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": unbuffered, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_who_leaves_is_no_engine_that_would_end(command: str, unbuffered: str) -> None:
    answer = asked(command, "--json", shell="| true", unbuffered=unbuffered)
    assert (answer.returncode, answer.stdout, answer.stderr) == (141, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_of_one_line_gets_it(unbuffered: str) -> None:
    answer = asked("knobs", "--json", shell="| head -1", unbuffered=unbuffered)
    assert (answer.returncode, answer.stdout, answer.stderr) == (141, "{\n", "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("shell", "why"), [(">&-", "standard output is closed"), ("> /dev/full", "No space left on device")]
)
def test_an_answer_that_cannot_be_written_is_said(command: str, shell: str, why: str) -> None:
    answer = asked(command, shell=shell)
    assert (answer.returncode, answer.stderr) == (2, f"error: the answer could not be written: {why}\n")
    assert asked(command, shell=f"{shell} 2>&-").returncode == 2


def test_what_an_engine_would_end_over_is_1() -> None:
    answer = asked("patches", SGLANG_DSV4_DISABLE_PATCHES="settled-pages")
    assert (answer.returncode, answer.stderr) == (1, "")
    answer = asked("patches", SGLANG_DSV4_DISABLE_PATCHES="settled-pages", SGLANG_DSV4_PATCH_POLICY="warn")
    assert (answer.returncode, answer.stderr) == (0, "")


def test_an_empty_policy_is_the_default() -> None:
    answer = asked("patches", "--json", SGLANG_DSV4_PATCH_POLICY="")
    assert (answer.returncode, json.loads(answer.stdout)["policy"]) == (0, "enforce")


@pytest.mark.parametrize("command", ["patches", "hazards"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT", "60s"),
        ("SGLANG_DSV4_LOST_DECODE_GRACE", "0"),
        ("SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT", "1"),
        ("SGLANG_DSV4_ALLOW_HOLD", "2"),
    ],
)
def test_a_setting_that_means_nothing_is_2(command: str, name: str, text: str) -> None:
    answer = asked(command, **{name: text})
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {name} ")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize("what", ["", "x", ":", "x:", ":y", "a..b:c", ".a:b", "a.:b", "json:a b"])
def test_a_fingerprint_of_nothing_is_a_wrong_question(what: str) -> None:
    answer = asked("patches", "--fingerprint", what)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.splitlines()[-1] == (
        f"python -m serving: error: --fingerprint wants MODULE:QUALNAME, not {what!r}"
    )


@pytest.mark.parametrize("what", ["json:nothing", "no_such_module:thing", "torch._C:x", "_bisect:bisect"])
def test_a_fingerprint_that_cannot_be_had_is_a_sentence(what: str) -> None:
    answer = asked("patches", "--fingerprint", what)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: ")
    assert len(answer.stderr.splitlines()) == 1


def test_what_is_no_flag_is_a_wrong_question() -> None:
    answer = asked("hazards", "--json", "foo", "bar")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "'foo' is no flag" in answer.stderr
    assert asked("hazards", "--", "--model-path", "m", "--trust-remote-code").returncode == 0


@pytest.mark.parametrize("broken", ["sglang/srt/environ.py", "sglang/srt/server_args.py", "sglang/srt/plugins/x.py"])
def test_an_engine_whose_source_is_broken_is_a_sentence(tmp_path: Path, broken: str) -> None:
    """Another package of that name in front of the real one, which has what is asked for as far as the first error."""
    for path in ("sglang/srt/environ.py", "sglang/srt/server_args.py", broken, "sglang_router/router_args.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    for package in ("sglang", "sglang_router"):
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "sglang/srt/environ.py").write_text(
        "class EnvField: ...\nclass EnvBool(EnvField): ...\nEnvInt = EnvFloat = EnvTuple = EnvBool\nclass Envs: ...\n"
    )
    (tmp_path / broken).write_text("def (")
    command, *flags = ("patches", "--fingerprint", "sglang.srt.plugins.x:f") if "plugins" in broken else ("knobs",)
    answer = asked(command, *flags, PYTHONPATH=str(tmp_path))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {tmp_path / broken} cannot be read as Python: ")
    assert len(answer.stderr.splitlines()) == 1
