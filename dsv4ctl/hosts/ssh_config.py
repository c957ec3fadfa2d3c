"""What a person's ssh_config says about a host, asked of ssh itself (`ssh -G`).

So Include, Match, patterns, canonicalization and defaults mean here what they mean to ssh. What `ssh -G` leaves as it
was written (`~` and % tokens of IdentityFile and ProxyCommand) is expanded here, as ssh_config(5) describes it.
"""

import getpass
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dsv4ctl.errors import DeadlineExceeded, OperationFailed, UsageError

CONFIG_ENV = "DSV4CTL_SSH_CONFIG"
# `Match exec` may run a program of the person's, so this is not instant.
RESOLVE_DEADLINE_S = 20.0
# Longer than any chain a person builds on purpose; a ProxyJump that leads back to itself ends here.
MAX_HOPS = 8


@dataclass(frozen=True)
class Target:
    """One machine, as ssh would reach it. `alias` is what the person wrote; `connect_timeout_s` None is "not set"."""

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...] = ()
    identities_only: bool = False
    agent_socket: str | None = None
    host_key_alias: str | None = None
    known_hosts_files: tuple[Path, ...] = ()
    connect_timeout_s: float | None = None
    proxy_command: str | None = None
    proxy_jump: tuple[str, ...] = ()

    @property
    def known_as(self) -> str:
        """The name in known_hosts: the alias if one is set, else the host name with its port if it is not 22."""
        if self.host_key_alias:
            return self.host_key_alias
        host = self.hostname.lower()
        return host if self.port == 22 else f"[{host}]:{self.port}"

    def __str__(self) -> str:
        where = f"{self.user}@{self.hostname}:{self.port}"
        return f"{self.alias} ({where})"


@dataclass(frozen=True)
class Hop:
    """A jump as ProxyJump spells it: [user@]host[:port]."""

    host: str
    user: str | None = None
    port: int | None = None


Resolve = Callable[[Hop], Target]


def route(hop: Hop, resolve: Resolve) -> tuple[Target, ...]:
    """The machines to go through, nearest first; the last is the one that was asked for.

    As in ssh, every jump has its own configuration, and the first may have jumps of its own.

    Raises:
        UsageError: the jumps lead in a circle.
    """
    target = resolve(hop)
    if not target.proxy_jump:
        return (target,)
    first, *between = (parse_hop(word) for word in target.proxy_jump)

    def inner(asked: Hop) -> Target:
        if asked == hop:
            raise UsageError(
                f"{hop.host}: its ProxyJump leads back to itself", hint="Give the jump host ProxyJump none."
            )
        return resolve(asked)

    before = route(first, inner)
    chain = (*before, *(replace(resolve(jump), proxy_command=None) for jump in between), target)
    if len(chain) > MAX_HOPS:
        raise UsageError(f"{hop.host}: more than {MAX_HOPS} hosts in its ProxyJump")
    return chain


def resolve_with_ssh(hop: Hop, config_file: str | None) -> Target:
    """Ask `ssh -G`.

    Raises:
        UsageError: ssh does not accept its configuration or the host's name.
        OperationFailed: there is no ssh here.
        DeadlineExceeded: ssh did not answer.
    """
    argv = ["ssh", "-T", "-G"]
    argv += ["-F", config_file] if config_file else []
    argv += ["-l", hop.user] if hop.user else []
    argv += ["-p", str(hop.port)] if hop.port else []
    argv += ["--", hop.host]
    try:
        answer = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=RESOLVE_DEADLINE_S, check=False
        )
    except FileNotFoundError as error:
        hint = "Install the OpenSSH client (openssh-client)."
        raise OperationFailed(f"{hop.host}: there is no ssh on this machine", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        what = f"{hop.host}: ssh -G did not answer within {RESOLVE_DEADLINE_S:g} s"
        raise DeadlineExceeded(what, hint="A `Match exec` of the ssh configuration may hang.") from error
    if answer.returncode != 0:
        raise UsageError(
            f"{hop.host}: ssh does not accept its configuration or this name",
            why=answer.stderr.decode(errors="backslashreplace").strip() or None,
        )
    return parse(hop.host, answer.stdout.decode(errors="surrogateescape"))


def parse(alias: str, output: str) -> Target:
    """A target out of what `ssh -G` printed: a line an option, its name in lower case."""
    options: dict[str, list[str]] = {}
    for line in output.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)

    def one(key: str) -> str | None:
        value = options.get(key, ["none"])[0]
        return None if value.lower() == "none" else value

    target = Target(
        alias=alias,
        hostname=one("hostname") or alias,
        port=int(one("port") or 22),
        user=one("user") or getpass.getuser(),
        identities_only=one("identitiesonly") == "yes",
        agent_socket=_agent_socket(options.get("identityagent", ["SSH_AUTH_SOCK"])[0]),
        host_key_alias=one("hostkeyalias"),
        known_hosts_files=_paths(one("userknownhostsfile")) + _paths(one("globalknownhostsfile")),
        connect_timeout_s=float(timeout) if (timeout := one("connecttimeout")) else None,
        proxy_jump=tuple(jumps.split(",")) if (jumps := one("proxyjump")) else (),
    )
    tokens = _tokens(target, options.get("host", [alias])[0])
    command = one("proxycommand")
    return replace(
        target,
        proxy_command=expand_tokens(command, tokens) if command else None,
        identity_files=tuple(
            Path(expand_tokens(_expand_variables(word), tokens)).expanduser()
            for word in options.get("identityfile", [])
            if word != "none"
        ),
    )


def parse_hop(word: str) -> Hop:
    """[user@]host[:port], or the same as ssh://... An IPv6 address with a port is in brackets.

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^@:\[\]]+))(?::(?P<port>\d+))?/?", word.strip()
    )
    if match:
        port = int(match["port"]) if match["port"] else None
        return Hop(host=match["v6"] or match["host"], user=match["user"], port=port)
    raise UsageError(f"{word!r} is no jump host", hint="Write [user@]host[:port] in ProxyJump.")


def expand_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Replace each %x.

    Raises:
        UsageError: a token that is not known, or a % at the end.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise UsageError(f"the token {match[0]!r} is not known in {text!r}", hint="See TOKENS in ssh_config(5).")
        return tokens[match[1]]

    return re.sub(r"%(.?)", value, text)


def _tokens(target: Target, original: str) -> dict[str, str]:
    local = socket.gethostname()
    return {
        "%": "%",
        "d": str(Path.home()),
        "h": target.hostname,
        "i": str(os.getuid()),
        "k": target.host_key_alias or original,
        "L": local.partition(".")[0],
        "l": local,
        "n": original,
        "p": str(target.port),
        "r": target.user,
        "u": getpass.getuser(),
    }


def _expand_variables(text: str) -> str:
    """${NAME} as in IdentityFile. A variable that is not set is an error, as it is to ssh."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UsageError(f"the environment variable {match[1]} of {text!r} in the ssh configuration is not set")
        return os.environ[match[1]]

    return re.sub(r"\$\{(\w+)\}", value, text)


def _agent_socket(value: str) -> str | None:
    """The socket of the agent to ask, or None."""
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK" or value.startswith("$"):
        return os.environ.get(value.lstrip("${").rstrip("}")) or None
    return str(Path(value).expanduser())


def _paths(value: str | None) -> tuple[Path, ...]:
    """Several absolute paths on one line; ssh -G writes them without quotes, so a name may have spaces in it."""
    return tuple(Path(path).expanduser() for path in re.split(r"\s+(?=[/~])", value or "") if path)
