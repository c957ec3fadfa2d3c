"""The ways to a host that a person's ssh_config can describe, against real servers."""

import os
import socket
import threading
from pathlib import Path

import pytest

from dsv4ctl.errors import ExitCode, HostUnreachable, UsageError
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.hosts.ssh_config import CONFIG_ENV
from dsv4ctl.waiting import wait_until
from tests.sshd import LOOPBACK, Sshd, SshNet, children, free_port, processes, public, user


def reaches(config: Path, name: str) -> bool:
    host = SshHost(name, config_file=str(config))
    try:
        return host.run(["echo", "here"], deadline_s=20).text == "here\n"
    finally:
        host.close()


def refusal(config: Path, name: str, deadline_s: float = 20) -> HostUnreachable:
    host = SshHost(name, config_file=str(config))
    with pytest.raises(HostUnreachable) as caught:
        host.run(["true"], deadline_s=deadline_s)
    host.close()
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    return caught.value


def test_include_and_match(net: SshNet, tmp_path: Path) -> None:
    included = tmp_path / "included"
    included.write_text(f'Match originalhost box exec "true"\n  Port {net.target.port}\n')
    config = net.write_config(f"Include {included}\nHost box\n  User {user()}\n", name=f"config-{tmp_path.name}")
    assert reaches(config, "box")


def test_user_and_port_in_the_name(net: SshNet) -> None:
    assert reaches(net.config, f"{user()}@direct")
    assert reaches(net.config, f"ssh://{user()}@{LOOPBACK}:{net.target.port}")


def test_the_way_leads_through_the_hop(net: SshNet) -> None:
    before = net.hop.accepted()
    assert reaches(net.config, "via-hop")
    assert net.hop.accepted() == before + 1


def test_a_chain_and_a_hop_with_a_jump_of_its_own(net: SshNet, tmp_path: Path) -> None:
    third = Sshd(tmp_path / "third").start()
    try:
        third.authorized_keys.write_text(public(net.user_key) + "\n")
        known = tmp_path / "known_hosts"
        known.write_text(net.known_hosts.read_text() + third.known_hosts_line)
        config = net.write_config(
            f"Host *\n  UserKnownHostsFile {known}\n"
            f"Host chain nested third\n  Port {third.port}\n"
            f"Host chain\n  ProxyJump {user()}@hop:{net.hop.port},direct\n"
            f"Host nested\n  ProxyJump via-hop\n"
            f"Host third\n  ProxyJump none\n"
            f"Match host {LOOPBACK} originalhost third\n  ProxyJump hop\n",
            name=f"config-{tmp_path.name}",
        )
        for name, hops in (("chain", 1), ("nested", 1), ("third", 0)):
            before = (net.hop.accepted(), net.target.accepted(), third.accepted())
            assert reaches(config, name)
            after = (net.hop.accepted(), net.target.accepted(), third.accepted())
            assert [a - b for a, b in zip(after, before, strict=True)] == [hops, hops, 1], name
    finally:
        third.stop()


def test_jumps_in_a_circle(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config(
        "Host round\n  ProxyJump and-round\nHost and-round\n  ProxyJump round\n", name=f"config-{tmp_path.name}"
    )
    with pytest.raises(UsageError, match="leads back"):
        SshHost("round", config_file=str(config)).run(["true"], deadline_s=10)


def test_proxy_command(net: SshNet, tmp_path: Path) -> None:
    """The command gets its tokens expanded, and is gone afterwards."""
    mark = f"proxy-{os.getpid()}-{tmp_path.name}"
    config = net.write_config(
        f"Host proxied\n  Port {net.target.port}\n"
        f"  ProxyCommand ssh -F {net.config} -o SetEnv=X={mark} -W %h:%p %r@hop\n",
        name=f"config-{tmp_path.name}",
    )
    before = net.hop.accepted()
    assert reaches(config, "proxied")
    assert net.hop.accepted() == before + 1
    assert processes(mark) == []


def test_a_proxy_command_that_fails_is_quoted(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config(
        "Host proxied\n  ProxyCommand echo the badge reader is off >&2; exit 1\n", name=f"config-{tmp_path.name}"
    )
    assert "the badge reader is off" in str(refusal(config, "proxied"))


def test_a_proxy_command_that_hangs(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config(
        "Host proxied\n  ConnectTimeout 1\n  ProxyCommand sh -c 'sleep 61 & sleep 61'\n", name=f"config-{tmp_path.name}"
    )
    before = set(children(os.getpid()))
    assert "in time" in str(refusal(config, "proxied"))
    assert set(children(os.getpid())) <= before


def test_a_refused_port(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config(f"Host shut\n  Port {free_port()}\n", name=f"config-{tmp_path.name}")
    error = refusal(config, "shut")
    assert "shut" in str(error)
    assert "connection refused" in str(error)


def test_a_refused_port_behind_the_hop_names_the_host(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config(f"Host shut\n  Port {free_port()}\n  ProxyJump hop\n", name=f"config-{tmp_path.name}")
    error = refusal(config, "shut")
    assert "shut" in str(error)
    assert "jump host" in str(error)


def test_a_name_without_an_address(net: SshNet, tmp_path: Path) -> None:
    config = net.write_config("Host nowhere\n  HostName nowhere.invalid\n", name=f"config-{tmp_path.name}")
    error = refusal(config, "nowhere")
    assert "nowhere.invalid" in str(error)
    assert "cannot be resolved" in str(error)


def test_a_server_that_accepts_and_says_nothing(net: SshNet, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        port = silent.getsockname()[1]
        config = net.write_config(f"Host silent\n  Port {port}\n  ConnectTimeout 1\n", name=f"config-{tmp_path.name}")
        assert "in time" in str(refusal(config, "silent"))
        # The caller's deadline holds too, where the configuration allows more.
        config.write_text(config.read_text().replace("ConnectTimeout 1", "ConnectTimeout 60"))
        assert "in time" in str(refusal(config, "silent", deadline_s=1))


def test_a_server_that_is_no_ssh_server(net: SshNet, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        config = net.write_config(f"Host web\n  Port {server.getsockname()[1]}\n", name=f"config-{tmp_path.name}")

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)

        thread = threading.Thread(target=answer)
        thread.start()
        assert "no SSH connection" in str(refusal(config, "web"))
        thread.join()


def test_a_configuration_ssh_does_not_accept(net: SshNet, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Bogus yes\n")
    with pytest.raises(UsageError, match="bogus"):
        SshHost("direct", config_file=str(config)).run(["true"], deadline_s=10)
    with pytest.raises(UsageError, match="missing"):
        SshHost("direct", config_file=str(tmp_path / "missing")).run(["true"], deadline_s=10)


def test_open_host(net: SshNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_ENV, str(net.config))
    assert isinstance(open_host("local"), LocalHost)
    host = open_host("via-hop")
    assert host.name == "via-hop"
    assert host.run(["echo", "here"], deadline_s=20).text == "here\n"
    host.close()


def test_nothing_is_left_after_close(net: SshNet, tmp_path: Path) -> None:
    threads, descriptors = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
    host = SshHost("via-hop", config_file=str(net.config))
    host.run(["true"], deadline_s=20)
    with host.http(timeout_s=1) as client, pytest.raises(Exception, match="no connection"):
        client.get(f"http://127.0.0.1:{free_port()}/")
    host.close()
    host.close()
    wait_until(lambda: set(threading.enumerate()) <= threads, deadline_s=3, what="our threads to end")
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
