"""Unit files that systemd itself accepts, and no secret in a file that everyone may read."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4ctl.emit import write_units
from dsv4ctl.errors import UsageError
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, Stack, build_stack, hosts_of

BOX = str(Path(__file__).parent.parent / "data" / "profiles" / "eight-gpus.toml")


def stack_of(ref: str, *sets: str) -> Stack:
    loaded = load_profile(ref, environ={}, cwd=Path.cwd(), sets=sets, gpus=())
    sites = {host: Site(sys.executable, "/state", "/home/op", "/tmp/op") for host in hosts_of(loaded.profile)}
    return build_stack(loaded, sites)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("ref", ["cpu", "cpu-2p2d", BOX])
def test_systemd_accepts_what_is_written(ref: str, tmp_path: Path) -> None:
    written = write_units(stack_of(ref, "SGLANG_LOG_MS=50% of $HOME \"and\" 'more'"), tmp_path)
    units = [str(path) for path in written if path.suffix in {".service", ".target"}]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_secrets_are_beside_the_unit_and_not_in_it(tmp_path: Path) -> None:
    written = write_units(stack_of("cpu", "HF_TOKEN=hunter2"), tmp_path)
    for path in written:
        private = stat.S_IMODE(path.stat().st_mode) == 0o600
        assert private == ("hunter2" in path.read_text())


def test_several_hosts_have_a_folder_each(tmp_path: Path) -> None:
    written = write_units(stack_of(str(Path(BOX).with_name("two-hosts.toml"))), tmp_path)
    assert {path.parent.name for path in written} == {"prefill-box", "decode-box"}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/dsv4-cpu-prefill-0\.service cannot be written"):
        write_units(stack_of("cpu"), tmp_path / "file")
