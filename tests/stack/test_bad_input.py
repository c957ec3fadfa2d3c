"""What a person may get wrong, or meet, before anything runs: a clear message, the right exit code, nothing left."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine import Dsv4, StackProfile, assert_gone, shm_files, write_profile

pytestmark = [pytest.mark.stack, pytest.mark.beside]

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")


@pytest.fixture
def mine(tmp_path: Path) -> Dsv4:
    return Dsv4(tmp_path / "state")


@pytest.fixture
def profile(tmp_path: Path) -> StackProfile:
    return write_profile(tmp_path, "bad")


def refused(mine: Dsv4, profile: StackProfile, *args: str, code: int) -> str:
    """Serve, which must fail with `code` and leave nothing; returns what it said."""
    before = shm_files()
    done = mine.run("serve", "--detach", *args, profile.path)
    assert done.code == code, (done.code, done.err)
    assert_gone(profile, before)
    return done.err


def test_a_taken_port(mine: Dsv4, profile: StackProfile) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", profile.router))
        squatter.listen()
        done = mine.run("serve", "--detach", profile.path)
    assert done.code == 6
    assert f"port {profile.router} on local, the http port of router, is held by pid {os.getpid()}" in done.err


def test_a_profile_that_is_not_there(mine: Dsv4) -> None:
    done = mine.run("serve", "no-such-profile")
    assert done.code == 2
    assert 'there is no profile "no-such-profile"' in done.err
    assert not mine.state.exists()


def test_a_model_path_that_is_not_there(mine: Dsv4, profile: StackProfile) -> None:
    said = refused(mine, profile, "--set", "model.path=/no/such/model", code=2)
    assert "model.path is wrong: there is no directory /no/such/model on local" in said


def test_a_directory_that_is_no_model(mine: Dsv4, profile: StackProfile, tmp_path: Path) -> None:
    said = refused(mine, profile, "--set", f"model.path={tmp_path}", code=2)
    assert "has no config.json, so it is no model" in said


def test_a_model_too_large_for_the_machine(mine: Dsv4, profile: StackProfile) -> None:
    said = refused(mine, profile, "--set", "model.size_gb=4000", code=6)
    assert "MODEL_TOO_LARGE" in said
    assert "the host has free" in said


def test_an_interpreter_that_is_not_there(mine: Dsv4, profile: StackProfile) -> None:
    said = refused(mine, profile, "--set", "engine.python=/no/such/python", code=2)
    assert "engine.python is wrong: there is no program /no/such/python on local" in said


def test_a_numa_node_that_is_not_there(mine: Dsv4, profile: StackProfile) -> None:
    said = refused(mine, profile, "--set", "prefill.workers[0].numa_node=63", code=2)
    assert "prefill.workers[0].numa_node 63 does not exist on host local" in said


def test_no_numactl(mine: Dsv4, profile: StackProfile, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "numactl" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    without = Dsv4(mine.state, (("PATH", str(tools)),))
    said = refused(without, profile, "--set", "prefill.workers[0].numa_node=0", code=6)
    assert "local has no numactl, and prefill-0 must be bound to a NUMA node" in said


def test_a_misspelt_variable(mine: Dsv4, profile: StackProfile) -> None:
    said = refused(mine, profile, "--set", "SGLANG_USE_CPU_ENGIN=1", code=2)
    assert "did you mean SGLANG_USE_CPU_ENGINE?" in said


def test_an_engine_that_ends_during_its_start(mine: Dsv4, profile: StackProfile) -> None:
    # Its choices are known to the engine alone, when it makes its parser.
    said = refused(mine, profile, "--set", "args.tool-call-parser=no_such_parser", code=1)
    assert "is not running: exit code 2" in said
    assert "why: sglang serve: error: argument --tool-call-parser: invalid choice: 'no_such_parser'" in said
    # Its log can still be read, although the stack is gone. Either engine may have been the first to end.
    logs = mine.run("logs", "-n", "200", "-p", profile.path)
    assert logs.code == 0
    assert "invalid choice: 'no_such_parser'" in logs.out


def test_an_engine_whose_model_is_broken(mine: Dsv4, profile: StackProfile, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"')
    said = refused(mine, profile, "--set", f"model.path={model}", code=1)
    assert "is not running" in said
    assert "config.json" in said


def test_a_state_directory_that_cannot_be_written(profile: StackProfile, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    said = refused(Dsv4(blocked), profile, code=6)
    assert "cannot be written" in said


@contextmanager
def full_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all the space there is."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


@as_root
def test_a_disk_that_is_nearly_full(profile: StackProfile, tmp_path: Path) -> None:
    with full_disk(tmp_path / "small", "1m"):
        said = refused(Dsv4(tmp_path / "small"), profile, code=6)
    assert "DISK_LOW" in said


@as_root
def test_a_disk_that_fills_up_during_the_start(profile: StackProfile, tmp_path: Path) -> None:
    """The record cannot be written any more: the start fails, and what was started is ended all the same."""
    small = tmp_path / "small"
    before = shm_files()
    with full_disk(small, "300m"):
        mine = Dsv4(small)
        serving = mine.start("serve", "-o", "jsonl", profile.path)
        assert serving.stdout is not None
        for line in serving.stdout:
            if '"step": "start:decode-0", "state": "begin"' in line:
                fill(small / "filler")
                break
        _, said = serving.communicate(timeout=120)
        assert serving.returncode == 1, said
        assert "No space left on device" in said
        assert_gone(profile, before)
