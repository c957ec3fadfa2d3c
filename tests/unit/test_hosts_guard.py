"""The guard in front of a command, under every shell that may be a login shell."""

import shutil
import subprocess

import pytest

from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.command import join
from dsv4ctl.hosts.guard import NOT_STARTED, STARTED, Input, after_start, exports, guarded, not_started
from dsv4ctl.hosts.remote_files import read_error
from dsv4ctl.waiting import wait_until
from tests.sshd import processes

ENV = {"X": 'it\'s \\ "so"\n$HOME', "guard_cwd": "/nowhere"}


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])
def test_every_login_shell_starts_it(shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    settings = exports(ENV)
    script = 'printf "%s\\0" "$X" "$guard_cwd" "$PWD" "$@"; exit 7'
    argv = ["/bin/sh", "-c", script, "sh", "a\\b'c"]
    line = join(guarded(argv, lease_s=20, held=Input.PASSED, exports_size=len(settings), cwd="/tmp"))
    done = subprocess.run([path, "-c", f"exec {line}"], input=settings, capture_output=True, timeout=20, check=False)
    found = after_start(done.stdout)
    assert found is not None
    assert found.decode().split("\0")[:-1] == [*ENV.values(), "/tmp", "a\\b'c"]
    assert done.returncode == 7
    assert after_start(done.stderr) == b""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("held", list(Input))
def test_the_lease_ends_it(shell: str, held: Input) -> None:
    """Whatever sh the host has; some are dash and some are bash."""
    number = f"8{id(held) % 10**6}{len(shell)}"
    argv = guarded(["sleep", number], lease_s=1, held=held)
    argv[0] = shutil.which(shell) or shell
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    with process:
        assert process.wait(10) < 0
    wait_until(lambda: not processes(number), deadline_s=5, what="the guard to end")


def test_a_line_renews_the_lease() -> None:
    argv = guarded(["sleep", "2"], lease_s=1, held=Input.HELD)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    with process:
        assert process.stdin is not None
        for _ in range(5):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.35)
            process.stdin.write(b"\n")
            process.stdin.flush()
        assert process.wait(10) == 0


def test_marks() -> None:
    assert after_start(b"noise" + STARTED + b"out" + STARTED) == b"out" + STARTED
    assert after_start(b"noise") is None
    assert not_started(b"err") is None
    assert not_started(b"noise" + STARTED + b"dsv4ctl-guard: line 9: exec: x: not found\n" + NOT_STARTED) == (
        b"x: not found\n"
    )


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (b"tail: cannot open '/x' for reading: No such file or directory\n", FileNotFoundError),
        (b"tail: cannot open '/x' for reading: Permission denied\n", PermissionError),
        (b"tail: error reading '/x': Is a directory\n", IsADirectoryError),
        (b"tail: error reading '/proc/9/stat': No such process\n", ProcessLookupError),
        (b"tail: the moon is full\n", OSError),
    ],
)
def test_what_tail_says_becomes_the_error_of_a_local_file(stderr: bytes, kind: type[OSError]) -> None:
    error = read_error("gpu1", "/x", Completed(("tail",), 1, b"", stderr, 0.0))
    assert type(error) is kind
    assert "gpu1" in str(error)
    assert "/x" in str(error)


def test_no_complaint_is_no_error() -> None:
    assert read_error("gpu1", "/x", Completed(("tail",), 141, b"data", b"", 0.0)) is None
