"""The same commands on another host, reached over SSH through a jump host, with the real engine at the other end."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import Dsv4, StackProfile, assert_gone, shm_files, write_profile
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.sshd import Sshd, SshNet, keygen
from tests.stack.test_probe import probe

pytestmark = [pytest.mark.stack, pytest.mark.beside]


def remote_profile(folder: Path, name: str, alias: str = "via-hop") -> StackProfile:
    more = f'engine.python = "{sys.executable}"\nhosts.box.ssh = "{alias}"\n'
    return write_profile(folder, name, host="box", more=more)


@pytest.fixture
def mine(tmp_path: Path, net: SshNet) -> Dsv4:
    return Dsv4(tmp_path / "state", (("DSV4CTL_SSH_CONFIG", str(net.config)),))


@pytest.fixture
def sshd(net: SshNet) -> Iterator[Sshd]:
    """The target's server, running again after the test whatever the test did to it."""
    yield net.target
    if net.target.process is None:
        net.target.start()


def begun(mine: Dsv4, profile: StackProfile, step: str):  # type: ignore[no-untyped-def]
    """A serve that has come to the beginning of `step`."""
    serving = mine.start("serve", "--detach", "-o", "jsonl", profile.path)
    assert serving.stdout is not None
    for line in serving.stdout:
        event = json.loads(line).get("event", {})
        if event.get("step") == step and event.get("state") == "begin":
            return serving
    raise AssertionError(serving.communicate())


def test_a_remote_stack_is_served_over_a_cut_looked_at_probed_and_stopped(
    mine: Dsv4, sshd: Sshd, tmp_path: Path
) -> None:
    before = shm_files()
    profile = remote_profile(tmp_path, "remote")
    planned = mine.invoke("serve", "--dry-run", profile.path, "-o", "json")
    assert {worker["host"] for worker in planned.document["result"]["workers"]} == {"box"}
    assert not (sshd.home / ".local/state/dsv4ctl/stacks").exists()
    serving = begun(mine, profile, "await:prefill-0")
    sshd.cut()
    _, said = serving.communicate(timeout=120)
    assert serving.returncode == 0, said
    # What runs there does not hang on a connection of ours.
    sshd.cut()

    status = mine.invoke("status", profile.path, "-o", "json")
    assert status.code == 0, status.err
    assert {worker["host"] for worker in status.document["result"]["workers"]} == {"box"}
    assert status.document["findings"] == []

    logs = mine.invoke("logs", "router", "-n", "3", "-p", profile.path)
    assert logs.code == 0, logs.err
    followed = mine.start("logs", "-f", "-n", "1", "-p", profile.path)
    assert followed.stdout is not None
    assert followed.stdout.readline().startswith("prefill-0 | ")
    followed.send_signal(signal.SIGINT)
    followed.communicate(timeout=30)
    assert followed.returncode == 130

    with misbehaving_proxy(profile.router, Mode.RESET_REUSED) as proxy:
        code, document = probe(mine, profile, "--via", proxy.url, "--rounds", "4", "--gaps", "0,0.5")
    assert code == 1, document
    hops = document["result"]["hops"]
    assert [hop["asked_from"] for hop in hops] == [["local"], ["box"], ["box", "box"]]
    assert document["result"]["verdict"]["hops"] == [proxy.url]
    assert document["result"]["verdict"]["cleared"]

    assert list((sshd.home / f".local/state/dsv4ctl/stacks/{profile.name}/journal").glob("*-serve.jsonl"))
    assert not mine.state.exists()
    stopped = mine.invoke("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(profile, before)
    assert mine.invoke("status", profile.path).code == 3


def test_a_host_that_stays_away_is_said_with_what_is_left_there(mine: Dsv4, sshd: Sshd, tmp_path: Path) -> None:
    before = shm_files()
    profile = remote_profile(tmp_path, "away")
    serving = begun(mine, profile, "await:prefill-0")
    sshd.stop()
    _, said = serving.communicate(timeout=120)
    assert serving.returncode == 4, said
    assert "cleaning up failed as well" in said
    assert "dsv4ctl stop" in said
    assert mine.run("status", profile.path).code == 4

    sshd.start()
    status = mine.run("status", profile.path, "-o", "json")
    assert "NOT_PROVEN" in {finding["code"] for finding in status.document["findings"]}
    stopped = mine.run("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(profile, before)


def test_a_foreground_serve_survives_a_cut_and_still_ends_the_stack(mine: Dsv4, sshd: Sshd, tmp_path: Path) -> None:
    before = shm_files()
    profile = remote_profile(tmp_path, "foreground")
    serving = mine.start("serve", profile.path)
    assert serving.stderr is not None
    seen = []
    for line in serving.stderr:
        seen.append(line)
        if "Ctrl-C ends the stack" in line:
            sshd.cut()
        if "the host answers again" in line:
            break
    serving.send_signal(signal.SIGINT)
    _, said = serving.communicate(timeout=60)
    assert serving.returncode == 130, [*seen, said]
    assert_gone(profile, before)


def test_an_unknown_host_key_is_refused_with_the_line_that_adds_it(mine: Dsv4, net: SshNet, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    config = net.write_config(f"Host *\n  UserKnownHostsFile {empty}\n", name="unknown_key_config")
    stranger = Dsv4(mine.state, (("DSV4CTL_SSH_CONFIG", str(config)),))
    done = stranger.run("serve", "--detach", remote_profile(tmp_path, "unknown").path)
    assert done.code == 4
    assert "known_hosts" in done.err
    assert "SHA256:" in done.err


def test_a_wrong_key_is_refused_and_says_which_were_tried(mine: Dsv4, net: SshNet, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong_key")
    config = net.write_config(f"Host *\n  IdentityFile {wrong}\n  IdentitiesOnly yes\n", name="wrong_key_config")
    text = config.read_text().replace(f"  IdentityFile {net.user_key}\n", "")
    config.write_text(text)
    stranger = Dsv4(mine.state, (("DSV4CTL_SSH_CONFIG", str(config)),))
    done = stranger.run("status", remote_profile(tmp_path, "wrong").path)
    assert done.code == 4
    assert str(wrong) in done.err


def test_a_host_that_cannot_be_reached(mine: Dsv4, net: SshNet, tmp_path: Path) -> None:
    config = net.write_config("Host gone\n  Port 1\n", name="gone_config")
    stranger = Dsv4(mine.state, (("DSV4CTL_SSH_CONFIG", str(config)),))
    done = stranger.run("stop", "--yes", remote_profile(tmp_path, "gone", alias="gone").path)
    assert done.code == 4
    assert "gone" in done.err
