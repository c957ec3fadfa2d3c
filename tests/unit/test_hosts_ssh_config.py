"""What `ssh -G` prints, read back."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.errors import OperationFailed, UsageError
from dsv4ctl.hosts.ssh_config import (
    Hop,
    Target,
    expand_tokens,
    parse,
    parse_hop,
    resolve_with_ssh,
    route,
)

NAME = st.from_regex(r"[a-z][a-z0-9.-]{0,10}", fullmatch=True)
PRINTED = """\
host gpu1
user bob smith
hostname 10.0.0.7
port 2200
identitiesonly yes
identityagent /run/agent
hostkeyalias box
identityfile ~/.ssh/id_%r
identityfile /keys/a b
globalknownhostsfile /etc/ssh/known /etc/ssh/known2
userknownhostsfile /home/bob/own hosts /home/bob/more
connecttimeout 7
proxycommand nc %h %p %%
"""


def test_everything_we_read() -> None:
    assert parse("gpu1", PRINTED) == Target(
        alias="gpu1",
        hostname="10.0.0.7",
        port=2200,
        user="bob smith",
        identity_files=(Path.home() / ".ssh/id_bob smith", Path("/keys/a b")),
        identities_only=True,
        agent_socket="/run/agent",
        host_key_alias="box",
        known_hosts_files=(
            Path("/home/bob/own hosts"),
            Path("/home/bob/more"),
            Path("/etc/ssh/known"),
            Path("/etc/ssh/known2"),
        ),
        connect_timeout_s=7,
        proxy_command="nc 10.0.0.7 2200 %",
    )


def test_none_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/from-env")
    lines = ["identityfile none", "identityagent none", "userknownhostsfile none", "globalknownhostsfile none"]
    lines += ["connecttimeout none", "proxycommand none", "proxyjump none", "hostname h", "user u", "port 22"]
    assert parse("h", "\n".join(lines)) == Target(alias="h", hostname="h", port=22, user="u")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("SSH_AUTH_SOCK", "/run/from-env"), ("$OTHER", "/run/other"), ("${OTHER}", "/run/other"), ("$UNSET", None)],
)
def test_the_agents_socket(value: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/from-env")
    monkeypatch.setenv("OTHER", "/run/other")
    monkeypatch.delenv("UNSET", raising=False)
    assert parse("h", f"identityagent {value}\n").agent_socket == expected


def test_the_agent_of_the_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/from-env")
    assert parse("h", "").agent_socket == "/run/from-env"


def test_variables_in_identity_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    assert parse("h", "identityfile ${KEYS}/a\n").identity_files == (Path("/keys/a"),)
    monkeypatch.delenv("KEYS")
    with pytest.raises(UsageError, match="KEYS"):
        parse("h", "identityfile ${KEYS}/a\n")


@pytest.mark.parametrize("text", ["%", "a%", "%Z"])
def test_unknown_tokens(text: str) -> None:
    with pytest.raises(UsageError, match="token"):
        expand_tokens(text, {"h": "x", "%": "%"})


@given(st.text(st.sampled_from("%hp ab"), max_size=12))
@settings(derandomize=True)
def test_tokens_expand_once(text: str) -> None:
    """Doubled percent signs give back any text, whatever tokens it looks like."""
    assert expand_tokens(text.replace("%", "%%"), {"%": "%", "h": "WRONG", "p": "WRONG"}) == text


@given(NAME | st.just("fe80::1"), st.none() | NAME | st.just("a@b"), st.none() | st.integers(1, 65535), st.booleans())
@settings(derandomize=True)
def test_hops_as_proxy_jump_spells_them(host: str, user: str | None, port: int | None, uri: bool) -> None:
    word = ("ssh://" if uri else "") + (f"{user}@" if user else "")
    word += (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    assert parse_hop(word) == Hop(host, user, port)


@pytest.mark.parametrize("word", ["", "a:b", "a:", "@", "::1", "a b:1:2"])
def test_what_is_no_hop(word: str) -> None:
    with pytest.raises(UsageError):
        parse_hop(word)


class TestRoute:
    def targets(self, jumps: dict[str, str]) -> dict[str, Target]:
        names = {*jumps, *(parse_hop(word).host for value in jumps.values() for word in value.split(","))}
        return {
            name: Target(name, name, 22, "u", proxy_jump=tuple(jumps[name].split(",")) if name in jumps else ())
            for name in names
        }

    def route(self, jumps: dict[str, str], name: str) -> list[str]:
        targets = self.targets(jumps)
        return [target.alias for target in route(Hop(name), lambda hop: targets[hop.host])]

    def test_chains_nearest_first(self) -> None:
        assert self.route({"t": "a,b"}, "t") == ["a", "b", "t"]

    def test_only_the_first_of_a_chain_uses_jumps_of_its_own(self) -> None:
        """ssh overrides the later ones' with the chain itself (-J)."""
        assert self.route({"t": "a,b", "a": "x", "b": "y"}, "t") == ["x", "a", "b", "t"]

    @pytest.mark.parametrize("jumps", [{"t": "t"}, {"t": "a", "a": "t"}, {"t": "a", "a": "b", "b": "a"}])
    def test_circles(self, jumps: dict[str, str]) -> None:
        with pytest.raises(UsageError, match="leads back"):
            self.route(jumps, "t")

    def test_too_long(self) -> None:
        with pytest.raises(UsageError, match="more than 8"):
            self.route({"t": ",".join("abcdefghi")}, "t")


def test_known_as() -> None:
    target = parse("gpu1", "hostname GPU1.Example\nport 22\n")
    assert target.known_as == "gpu1.example"
    assert parse("gpu1", "hostname gpu1\nport 2200\n").known_as == "[gpu1]:2200"
    assert parse("gpu1", "hostname gpu1\nport 2200\nhostkeyalias box\n").known_as == "box"


def test_what_this_machines_ssh_really_prints(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/more\n"
        'Host gpu*\n  HostName %h.example\n  User "bob"\n  IdentityFile "/keys/a b"\n  IdentityFile ~/k-%n\n'
        '  UserKnownHostsFile "~/own hosts" /tmp/kh-%k\n  ProxyJump u@j1:2222,[::1]:77\n'
    )
    (tmp_path / "more").write_text('Match originalhost gpu1 exec "true"\n  Port 2200\n  IdentityAgent none\n')
    target = resolve_with_ssh(Hop("gpu1"), str(config))
    assert (target.hostname, target.port, target.user) == ("gpu1.example", 2200, "bob")
    assert target.identity_files == (Path("/keys/a b"), Path.home() / "k-gpu1")
    assert target.known_hosts_files[:2] == (Path.home() / "own hosts", Path("/tmp/kh-gpu1"))
    assert target.proxy_jump == ("u@j1:2222", "[::1]:77")
    assert target.agent_socket is None
    assert resolve_with_ssh(Hop("gpu1", "eve", 44), str(config)).user == "eve"
    assert resolve_with_ssh(Hop("gpu1", "eve", 44), str(config)).port == 44


@pytest.mark.parametrize("name", ["-oProxyCommand=touch /tmp/owned", "a b", "$(id)", "a;b"])
def test_a_name_that_ssh_refuses(name: str, tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    with pytest.raises(UsageError):
        resolve_with_ssh(Hop(name), str(tmp_path / "config"))


def test_no_ssh_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationFailed, match="no ssh"):
        resolve_with_ssh(Hop("gpu1"), None)


def test_importing_base_and_connect_is_light() -> None:
    """`dsv4ctl --help` must not pay for paramiko, nor for httpx."""
    heavy = ("paramiko", "httpx", "cryptography")
    code = f"import sys, dsv4ctl.hosts.connect; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
