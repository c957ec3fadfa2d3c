"""Which host key is good, without a network."""

from pathlib import Path

import paramiko
import pytest

from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.known_hosts import (
    HostKeyRefused,
    KnownKey,
    lookup,
    parse_found,
    preferred_algorithms,
    verify,
)
from dsv4ctl.hosts.ssh_config import Target
from tests.sshd import keygen, public

FILE = Path("/home/bob/.ssh/known hosts")
TARGET = Target("gpu1", "10.0.0.7", 2200, "bob", known_hosts_files=(FILE,))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key_file(str(keygen(tmp_path_factory.mktemp("keys") / "key")))


def known(key: paramiko.PKey, marker: str = "", base64: str | None = None) -> KnownKey:
    return KnownKey(FILE, 3, key.get_name(), base64 or key.get_base64(), marker)


def test_a_known_key_is_good(key: paramiko.PKey) -> None:
    verify(TARGET, key, (known(key, base64="AAAAother"), known(key)))


def test_an_unknown_key_and_the_line_that_adds_it(key: paramiko.PKey) -> None:
    with pytest.raises(HostKeyRefused) as caught:
        verify(TARGET, key, ())
    assert key.fingerprint in str(caught.value)
    assert caught.value.hint
    line = f"[10.0.0.7]:2200 {key.get_name()} {key.get_base64()}"
    assert f"echo '{line}' >> '{FILE}'" in caught.value.hint


def test_a_changed_key_and_the_line_that_removes_the_old(key: paramiko.PKey) -> None:
    with pytest.raises(HostKeyRefused) as caught:
        verify(TARGET, key, (known(key, base64="AAAAother"),))
    assert f"{FILE} line 3" in str(caught.value)
    assert caught.value.hint
    assert f"ssh-keygen -R '[10.0.0.7]:2200' -f '{FILE}'" in caught.value.hint


def test_a_revoked_key_is_never_good(key: paramiko.PKey) -> None:
    with pytest.raises(HostKeyRefused, match="revoked"):
        verify(TARGET, key, (known(key), known(key, "@revoked")))


def test_a_certificate_authority_is_no_host_key(key: paramiko.PKey) -> None:
    with pytest.raises(HostKeyRefused, match="not known"):
        verify(TARGET, key, (known(key, "@cert-authority"),))


def test_algorithms_we_can_compare_come_first() -> None:
    supported = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]
    rsa = KnownKey(FILE, 1, "ssh-rsa", "AAAA")
    assert preferred_algorithms((rsa,), supported) == ["rsa-sha2-512", "rsa-sha2-256", *supported[:2]]
    assert preferred_algorithms((), supported) == supported


def test_what_ssh_keygen_prints() -> None:
    printed = (
        "# Host a found: line 12 REVOKED\n@revoked a ssh-rsa AAAA1 me\n"
        "# Host a found: line 14 \n|1|x=|y= ssh-rsa AAAA2\n"
    )
    assert parse_found(FILE, printed) == (
        KnownKey(FILE, 12, "ssh-rsa", "AAAA1", "@revoked"),
        KnownKey(FILE, 14, "ssh-rsa", "AAAA2"),
    )


def test_lookup_in_real_files(tmp_path: Path) -> None:
    line = public(keygen(tmp_path / "key"))
    (tmp_path / "known").write_text(f"# comment\n\nnonsense\n*.lab,!bad.lab {line}\n[h]:22022 {line}\n")
    files = [tmp_path / "missing", tmp_path / "known"]
    assert [key.line for key in lookup("gpu.lab", files)] == [4]
    assert [key.line for key in lookup("[h]:22022", files)] == [5]
    assert lookup("bad.lab", files) == ()
    assert lookup("h", files) == ()


def test_no_ssh_keygen_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperationFailed, match=str(tmp_path)):
        lookup("h", [tmp_path])
