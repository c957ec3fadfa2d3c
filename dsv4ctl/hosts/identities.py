"""Who we are to a host: keys of the agent and of the configured files, tried in ssh's order."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from dsv4ctl.errors import HostUnreachable
from dsv4ctl.hosts.ssh_config import Target

# An agent may ask the person to confirm or to touch a token.
AGENT_TIMEOUT_S = 30.0


class AuthenticationRefused(HostUnreachable):
    """The host knows none of our keys for this user: we could not look."""


@dataclass(frozen=True)
class Identity:
    """A key that can sign, and what to call it in a message."""

    label: str
    key: paramiko.PKey


@dataclass
class Identities:
    """The keys to try, and why others cannot be."""

    usable: list[Identity] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


class Agent(AgentSSH):
    """The ssh-agent at a socket. paramiko's own Agent knows only the one of SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(AGENT_TIMEOUT_S)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """End the connection to the agent; its keys cannot sign any more."""
        self._close()  # type: ignore[attr-defined]


def authenticate(transport: paramiko.Transport, target: Target) -> None:
    """Log in.

    Raises:
        AuthenticationRefused: no key was accepted. The message names the user, the host and every key tried.
        paramiko.SSHException, EOFError, OSError: the connection was lost.
    """
    try:
        transport.auth_none(target.user)
    except paramiko.BadAuthenticationType as error:
        methods = error.allowed_types
    else:
        return
    agent, found = _open_agent(target)
    try:
        collect(target, agent, found)
        tried = []
        for identity in found.usable if "publickey" in methods else []:
            tried.append(identity.label)
            try:
                left = transport.auth_publickey(target.user, identity.key)
            except paramiko.AuthenticationException as error:
                if not transport.is_active():
                    raise _refused(target, tried, found, f"the host ended the connection ({error})") from error
                continue
            if transport.is_authenticated():
                return
            raise _refused(target, tried, found, f"the host asks for more: {', '.join(left)}")
        raise _refused(target, tried, found, f"the host accepts: {', '.join(methods)}")
    finally:
        if agent is not None:
            agent.close()


def _refused(target: Target, tried: list[str], found: Identities, last: str) -> AuthenticationRefused:
    facts = [f"tried {', '.join(tried) or 'no key'}", *found.unusable, last]
    return AuthenticationRefused(
        f"{target}: no key was accepted for user {target.user}",
        why="; ".join(facts),
        hint="Passwords are never asked for. Check IdentityFile and User of the host, or load a key with ssh-add.",
    )


def _open_agent(target: Target) -> tuple[Agent | None, Identities]:
    if target.agent_socket is None:
        return None, Identities()
    try:
        return Agent(target.agent_socket), Identities()
    except (OSError, paramiko.SSHException) as error:
        return None, Identities(unusable=[f"the agent at {target.agent_socket} does not answer ({error})"])


def collect(target: Target, agent: Agent | None, found: Identities) -> None:
    """Fill `found` in ssh's order: configured keys that the agent holds, its other keys, then configured files."""
    held = {key.asbytes(): key for key in (agent.get_keys() if agent else ())}
    files = list(_files(target, found))
    configured = [blob for _, _, blob in files if blob is not None and blob in held]
    others = [] if target.identities_only else [blob for blob in held if blob not in configured]
    for held_blob in [*dict.fromkeys(configured), *others]:
        found.usable.append(Identity(_agent_label(held[held_blob]), held[held_blob]))
    for path, key, blob in files:
        if blob in held:
            continue
        if key is None:
            found.unusable.append(f"{path} needs a passphrase and is not in the agent, or is only a public key")
            continue
        if key.public_blob is not None:
            found.usable.append(Identity(f"{path} with its certificate", key))
            # A certificate may be expired or for somebody else; the key itself may still do.
            key = paramiko.PKey.from_path(path)
            key.public_blob = None
        found.usable.append(Identity(f"{path} ({key.fingerprint})", key))


def _agent_label(key: AgentKey) -> str:
    return f"agent key {key.comment} ({key.fingerprint})"


def _files(target: Target, found: Identities) -> Iterator[tuple[Path, paramiko.PKey | None, bytes | None]]:
    """Each configured file that is there: its path, its private key if we can use it, its public key if we know it."""
    for path in target.identity_files:
        public = _public_blob(path)
        try:
            key = paramiko.PKey.from_path(path)
        except FileNotFoundError:
            # ssh's own defaults are mostly not there; a key that was asked for by name is worth a word.
            if not path.name.startswith("id_"):
                found.unusable.append(f"{path} does not exist")
            if public:
                yield path, None, public
        except OSError as error:
            found.unusable.append(f"{path} cannot be read ({error.strerror})")
        except (TypeError, paramiko.PasswordRequiredException):
            # cryptography raises TypeError for a key that needs a passphrase.
            yield path, None, public
        except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            if public:
                yield path, None, public
            else:
                found.unusable.append(f"{path} is no key we can read ({error})")
        else:
            yield path, key, paramiko.PKey.from_type_string(key.get_name(), key.asbytes()).asbytes()


def _public_blob(path: Path) -> bytes | None:
    """The public key beside a private one, or in the file itself."""
    for candidate in (path.with_name(f"{path.name}.pub"), path):
        try:
            words = candidate.read_text(errors="replace").split()
        except OSError:
            continue
        if len(words) >= 2 and words[1].startswith("AAAA"):
            return paramiko.pkey.PublicBlob.from_string(f"{words[0]} {words[1]}").key_blob
    return None
