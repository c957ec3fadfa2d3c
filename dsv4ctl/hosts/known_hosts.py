"""Host keys: only a key that known_hosts already holds is good. An unknown or a changed key is refused, whatever
StrictHostKeyChecking says, with what to type to change that.

`ssh-keygen -F` looks the host up, so hashed names, patterns and markers mean what they mean to ssh.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4ctl.errors import HostUnreachable, OperationFailed
from dsv4ctl.hosts.command import join
from dsv4ctl.hosts.ssh_config import Target

if TYPE_CHECKING:
    import paramiko

LOOKUP_DEADLINE_S = 10.0
# The same key type signs with different algorithms; known_hosts names the type (RFC 8332).
ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class HostKeyRefused(HostUnreachable):
    """The host's key is unknown, changed or revoked: we did not look, because we do not know whom we would ask."""


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file about one host."""

    file: Path
    line: int
    type: str
    base64: str
    marker: str = ""


def lookup(known_as: str, files: Iterable[Path]) -> tuple[KnownKey, ...]:
    """Every line about `known_as`, of all files that exist.

    Raises:
        OperationFailed: a file cannot be searched.
    """
    return tuple(key for file in files if file.exists() for key in _lookup_one(known_as, file))


def _lookup_one(known_as: str, file: Path) -> tuple[KnownKey, ...]:
    try:
        answer = subprocess.run(
            ["ssh-keygen", "-F", known_as, "-f", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=LOOKUP_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperationFailed(f"cannot look up {known_as} in {file}", why=str(error)) from error
    # 1 is "not found" (ssh-keygen.c); it says nothing then.
    if answer.returncode not in (0, 1):
        raise OperationFailed(f"cannot look up {known_as} in {file}", why=answer.stderr.strip() or None)
    return parse_found(file, answer.stdout)


def parse_found(file: Path, output: str) -> tuple[KnownKey, ...]:
    """The keys in what `ssh-keygen -F` printed: a comment with the line's number, then the line itself."""
    keys = []
    number = 0
    for line in output.splitlines():
        words = line.split()
        if line.startswith("# Host ") and "line" in words:
            number = int(words[words.index("line") + 1])
            continue
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) >= 3:
            keys.append(KnownKey(file, number, words[1], words[2], marker))
    return tuple(keys)


def preferred_algorithms(known: Iterable[KnownKey], supported: Iterable[str]) -> list[str]:
    """`supported`, those first that give us a key we can compare: a host has keys of several types."""
    types = {key.type for key in known if not key.marker}
    wanted = {algorithm for name in types for algorithm in ALGORITHMS.get(name, (name,))}
    return sorted(supported, key=lambda algorithm: algorithm not in wanted)


def verify(target: Target, key: "paramiko.PKey", known: tuple[KnownKey, ...]) -> None:
    """Accept the key a host showed.

    Raises:
        HostKeyRefused: it is unknown, it is not the one known_hosts holds, or it was revoked there.
    """
    name, blob = key.get_name(), key.get_base64()
    shown = f"it showed the {name} key {key.fingerprint}"
    revoked = next((k for k in known if k.marker == "@revoked" and k.base64 == blob), None)
    if revoked:
        raise HostKeyRefused(f"{target}: its host key is revoked by {revoked.file} line {revoked.line}", why=shown)
    good = [k for k in known if not k.marker]
    if any((k.type, k.base64) == (name, blob) for k in good):
        return
    other = next((k for k in good if k.type == name), good[0] if good else None)
    if other is None:
        raise HostKeyRefused(f"{target}: its host key is not known", why=shown, hint=_how_to_add(target, name, blob))
    remove = join(["ssh-keygen", "-R", target.known_as, "-f", str(other.file)])
    raise HostKeyRefused(
        f"{target}: its host key is not the known one of {other.file} line {other.line}",
        why=f"{shown}; somebody may be between you and the host, or the host was set up again",
        hint=f"If the change is expected, check the fingerprint on the host, and remove the old key:\n  {remove}\n"
        f"then {_how_to_add(target, name, blob, first='add the new one')}",
    )


def _how_to_add(
    target: Target, name: str, blob: str, *, first: str = "Check the fingerprint on the host, then add it"
) -> str:
    file = target.known_hosts_files[0] if target.known_hosts_files else Path.home() / ".ssh/known_hosts"
    return f"{first}:\n  echo {join([f'{target.known_as} {name} {blob}'])} >> {join([str(file)])}"
