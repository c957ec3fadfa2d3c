"""Whom we trust and who we are: host keys and identities, against a real sshd."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4ctl.errors import ExitCode, HostUnreachable
from dsv4ctl.hosts.identities import AuthenticationRefused
from dsv4ctl.hosts.known_hosts import HostKeyRefused
from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.waiting import wait_until
from tests.sshd import SshNet, fingerprint, keygen, public, user


def refusal(config: Path, name: str = "direct") -> HostUnreachable:
    """The error of the first call."""
    host = SshHost(name, config_file=str(config))
    with pytest.raises(HostUnreachable) as caught:
        host.run(["true"], deadline_s=10)
    host.close()
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    return caught.value


def reaches(config: Path, name: str = "direct") -> bool:
    host = SshHost(name, config_file=str(config))
    try:
        return host.run(["echo", "here"], deadline_s=10).text == "here\n"
    finally:
        host.close()


class TestHostKey:
    def config(self, net: SshNet, tmp_path: Path, lines: str, extra: str = "") -> Path:
        """A configuration whose known_hosts has just these lines."""
        known = tmp_path / "known_hosts"
        known.write_text(lines)
        return net.write_config(f"Host direct\n  UserKnownHostsFile {known}\n{extra}", name=f"config-{tmp_path.name}")

    def test_an_unknown_key_is_refused_with_the_line_that_adds_it(self, net: SshNet, tmp_path: Path) -> None:
        config = self.config(net, tmp_path, "", "  StrictHostKeyChecking no\n")
        error = refusal(config)
        assert isinstance(error, HostKeyRefused)
        assert fingerprint(net.target.host_key) in str(error)
        assert "direct" in str(error)
        assert error.hint
        command = error.hint.splitlines()[-1].strip()
        assert net.target.known_hosts_line.strip() in command
        subprocess.run(["sh", "-c", command], check=True, timeout=10)
        assert reaches(config)

    def test_a_changed_key_is_refused_with_the_line_that_removes_the_old(self, net: SshNet, tmp_path: Path) -> None:
        other = keygen(tmp_path / "other")
        port = net.target.port
        config = self.config(net, tmp_path, f"# comment\n[127.0.0.1]:{port} {public(other)}\n")
        error = refusal(config)
        assert isinstance(error, HostKeyRefused)
        assert fingerprint(net.target.host_key) in str(error)
        assert f"{tmp_path / 'known_hosts'} line 2" in str(error)
        assert error.hint
        for line in error.hint.splitlines():
            if line.startswith("  "):
                subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=10)
        assert reaches(config)

    def test_a_revoked_key_is_refused(self, net: SshNet, tmp_path: Path) -> None:
        line = net.target.known_hosts_line
        error = refusal(self.config(net, tmp_path, f"{line}@revoked {line}"))
        assert isinstance(error, HostKeyRefused)
        assert "revoked" in str(error)

    def test_a_hashed_name_is_found(self, net: SshNet, tmp_path: Path) -> None:
        config = self.config(net, tmp_path, net.target.known_hosts_line)
        known = tmp_path / "known_hosts"
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True, timeout=10)
        assert known.read_text().startswith("|1|")
        assert reaches(config)

    def test_a_pattern_and_an_alias(self, net: SshNet, tmp_path: Path) -> None:
        config = self.config(net, tmp_path, f"gpu*,!gpu9 {public(net.target.host_key)}\n", "  HostKeyAlias gpu1\n")
        assert reaches(config)
        config.write_text(config.read_text().replace("gpu1", "gpu9"))
        assert isinstance(refusal(config), HostKeyRefused)

    def test_any_of_several_files(self, net: SshNet, tmp_path: Path) -> None:
        spaced = tmp_path / "own hosts"
        spaced.write_text(net.target.known_hosts_line)
        config = net.write_config(
            f'Host direct\n  UserKnownHostsFile {tmp_path}/missing "{spaced}"\n', name=f"config-{tmp_path.name}"
        )
        assert reaches(config)

    def test_another_key_type_than_the_one_it_would_choose(self, net: SshNet, tmp_path: Path) -> None:
        """known_hosts has the host's RSA key only; the host offers its other key first."""
        rsa = keygen(net.target.directory / f"rsa-{tmp_path.name}", "rsa")
        options = net.target.options
        net.target.stop()
        net.target.options = (*options, f"HostKey {rsa}")
        net.target.start()
        try:
            assert reaches(self.config(net, tmp_path, f"[127.0.0.1]:{net.target.port} {public(rsa)}\n"))
        finally:
            net.target.stop()
            net.target.options = options
            net.target.start()

    def test_every_hop_is_verified(self, net: SshNet, tmp_path: Path) -> None:
        known = tmp_path / "known_hosts"
        known.write_text(net.target.known_hosts_line)
        config = net.write_config(f"Host *\n  UserKnownHostsFile {known}\n", name=f"config-{tmp_path.name}")
        error = refusal(config, "via-hop")
        assert isinstance(error, HostKeyRefused)
        assert fingerprint(net.hop.host_key) in str(error)


class TestIdentity:
    def test_a_wrong_key_names_user_host_and_what_was_tried(self, net: SshNet, tmp_path: Path) -> None:
        wrong = keygen(tmp_path / "wrong")
        (tmp_path / "broken").write_text("nonsense")
        config = net.write_config(
            f"Host direct\n  IdentitiesOnly yes\n  IdentityFile {wrong}\n  IdentityFile {tmp_path}/broken\n"
            f"  IdentityFile {tmp_path}/missing\n",
            name=f"config-{tmp_path.name}",
        )
        # IdentityFile adds up, so the good key of the shared part must go.
        config.write_text(config.read_text().replace(f"  IdentityFile {net.user_key}\n", ""))
        error = refusal(config)
        assert isinstance(error, AuthenticationRefused)
        for fact in (user(), "direct", str(wrong), fingerprint(wrong), "broken", "missing", "publickey"):
            assert fact in str(error), fact

    def test_no_key_at_all(self, net: SshNet, tmp_path: Path) -> None:
        config = net.write_config("", name=f"config-{tmp_path.name}")
        config.write_text(config.read_text().replace(f"IdentityFile {net.user_key}", "IdentityFile none"))
        error = refusal(config)
        assert isinstance(error, AuthenticationRefused)
        assert "no key" in str(error)

    def test_the_second_of_two_files(self, net: SshNet, tmp_path: Path) -> None:
        wrong = keygen(tmp_path / "a wrong one", "rsa")
        assert reaches(net.write_config(f'Host *\n  IdentityFile "{wrong}"\n', name=f"config-{tmp_path.name}"))

    @pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
    def test_every_kind_of_key(self, net: SshNet, tmp_path: Path, kind: str) -> None:
        key = keygen(tmp_path / kind, kind)
        with net.target.authorized_keys.open("a") as keys:
            keys.write(public(key) + "\n")
        config = net.write_config("", name=f"config-{tmp_path.name}")
        config.write_text(config.read_text().replace(str(net.user_key), str(key)))
        assert reaches(config)

    @pytest.mark.parametrize("validity", ["always:forever", "20200101:20210101"])
    def test_a_certificate_and_the_key_without_it(self, net: SshNet, tmp_path: Path, validity: str) -> None:
        """A good certificate logs in where the key alone is not known; a stale one does no harm to a known key."""
        authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "key")
        certify = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user(), "-V", validity, f"{key}.pub"]
        subprocess.run(certify, check=True, timeout=10)
        with net.target.authorized_keys.open("a") as keys:
            keys.write(f"cert-authority {public(authority)}\n" if "always" in validity else f"{public(key)}\n")
        config = net.write_config("", name=f"config-{tmp_path.name}")
        config.write_text(config.read_text().replace(str(net.user_key), str(key)))
        assert reaches(config)

    def test_a_key_with_a_passphrase_is_named(self, net: SshNet, tmp_path: Path) -> None:
        locked = keygen(tmp_path / "locked", passphrase="secret")
        config = net.write_config("", name=f"config-{tmp_path.name}")
        config.write_text(config.read_text().replace(str(net.user_key), str(locked)))
        error = refusal(config)
        assert "passphrase" in str(error)
        assert str(locked) in str(error)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """A real ssh-agent without keys; gives its socket."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists, deadline_s=5, what="the agent")
        yield path
    finally:
        process.terminate()
        process.wait(5)


def load(agent: Path, key: Path, passphrase: str = "") -> None:
    """Put a key into an agent. ssh-add asks a program for the passphrase when there is no terminal."""
    ask = key.with_name("ask")
    ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    ask.chmod(0o700)
    env = {**os.environ, "SSH_AUTH_SOCK": str(agent), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, timeout=10, stdin=subprocess.DEVNULL)


class TestAgent:
    def config(self, net: SshNet, tmp_path: Path, identity: str, agent: str) -> Path:
        config = net.write_config("", name=f"config-{tmp_path.name}")
        text = config.read_text().replace("IdentityAgent none", f"IdentityAgent {agent}")
        config.write_text(text.replace(f"IdentityFile {net.user_key}", identity))
        return config

    def authorized(self, net: SshNet, tmp_path: Path, passphrase: str = "") -> Path:
        key = keygen(tmp_path / "agent-key", "rsa", passphrase=passphrase)
        with net.target.authorized_keys.open("a") as keys:
            keys.write(public(key) + "\n")
        return key

    def test_a_key_of_the_configured_agent(self, net: SshNet, tmp_path: Path, agent: Path) -> None:
        key = self.authorized(net, tmp_path)
        load(agent, key)
        key.unlink()
        assert reaches(self.config(net, tmp_path, "IdentityFile none", str(agent)))

    def test_the_agent_of_the_environment(
        self, net: SshNet, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load(agent, self.authorized(net, tmp_path))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        assert reaches(self.config(net, tmp_path, "IdentityFile none", "SSH_AUTH_SOCK"))
        monkeypatch.setenv("DSV4_AGENT", str(agent))
        monkeypatch.delenv("SSH_AUTH_SOCK")
        assert reaches(self.config(net, tmp_path, "IdentityFile none", "$DSV4_AGENT"))

    def test_a_locked_file_that_the_agent_has_open(self, net: SshNet, tmp_path: Path, agent: Path) -> None:
        key = self.authorized(net, tmp_path, passphrase="secret")
        load(agent, key, "secret")
        assert reaches(self.config(net, tmp_path, f"IdentitiesOnly yes\n  IdentityFile {key}", str(agent)))

    def test_a_public_key_chooses_among_the_agents(self, net: SshNet, tmp_path: Path, agent: Path) -> None:
        key = self.authorized(net, tmp_path)
        load(agent, keygen(tmp_path / "other"))
        load(agent, key)
        key.unlink()
        assert reaches(self.config(net, tmp_path, f"IdentitiesOnly yes\n  IdentityFile {key}.pub", str(agent)))

    def test_identities_only_keeps_the_agents_other_keys_back(self, net: SshNet, tmp_path: Path, agent: Path) -> None:
        load(agent, self.authorized(net, tmp_path))
        error = refusal(self.config(net, tmp_path, "IdentitiesOnly yes\n  IdentityFile none", str(agent)))
        assert "no key" in str(error)

    def test_a_dead_agent_is_named_when_nothing_else_works(self, net: SshNet, tmp_path: Path) -> None:
        error = refusal(self.config(net, tmp_path, "IdentityFile none", str(tmp_path / "gone")))
        assert str(tmp_path / "gone") in str(error)
