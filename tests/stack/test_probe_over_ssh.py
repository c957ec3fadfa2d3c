"""`dsv4ctl probe` of a stack on another host, and of a bad proxy on this one before it."""

import sys
from pathlib import Path

import pytest

from tests.engine import Dsv4, assert_gone, shm_files, write_profile
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.sshd import SshNet
from tests.stack.test_probe import probe

pytestmark = [pytest.mark.stack, pytest.mark.beside]


def test_a_stack_on_another_host_is_asked_from_there(net: SshNet, tmp_path: Path) -> None:
    mine = Dsv4(tmp_path / "state", (("DSV4CTL_SSH_CONFIG", str(net.config)),))
    before = shm_files()
    more = f'engine.python = "{sys.executable}"\nhosts.box.ssh = "via-hop"\n'
    profile = write_profile(tmp_path, "probed", host="box", more=more)
    served = mine.run("serve", "--detach", profile.path)
    assert served.code == 0, served.err
    with misbehaving_proxy(profile.router, Mode.RESET_REUSED) as proxy:
        words = ("--via", proxy.url, "--rounds", "4", "--gaps", "0,0.5")
        code, document = probe(mine, profile, *words)
    assert mine.run("stop", "--yes", profile.path).code == 0
    assert_gone(profile, before)
    assert code == 1, document
    hops = document["result"]["hops"]
    assert [hop["asked_from"] for hop in hops] == [["local"], ["box"], ["box", "box"]]
    assert document["result"]["verdict"]["hops"] == [proxy.url]
    assert document["result"]["verdict"]["cleared"]
