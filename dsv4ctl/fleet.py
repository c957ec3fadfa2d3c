"""The hosts of one stack, each with what we do there: its supervisor, its state directory, its engine's interpreter."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import OperationFailed
from dsv4ctl.stack import Site, default_python, hosts_of
from dsv4ctl.state import DIRECTORY_NAME, StateStore
from dsv4ctl.supervisors.base import Supervisor

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host
    from dsv4ctl.profile.schema import Profile

OpenHost = Callable[[str], "Host"]


@dataclass(frozen=True)
class Place:
    """One host of the stack, opened."""

    name: str
    host: "Host"
    site: Site
    store: StateStore
    supervisor: Supervisor


Fleet = Mapping[str, Place]


@contextmanager
def open_fleet(profile: "Profile", open_host: OpenHost) -> Iterator[Fleet]:
    """Open every host of a profile; `open_host` takes the name that ssh knows, or `local`. Leaving closes them all.

    Raises:
        HostUnreachable: a host could not be reached.
        UsageError: no interpreter is known for a host.
    """
    with ExitStack() as stack:
        fleet: dict[str, Place] = {}
        for name in hosts_of(profile):
            entry = profile.hosts.get(name)
            host = stack.enter_context(_closing(open_host(entry.ssh if entry else name)))
            python = default_python(profile, name, sys.executable)
            fleet[name] = open_place(name, host, profile.supervisor, python, entry.state_dir if entry else None)
        yield fleet


@contextmanager
def open_local(supervisor: str, open_host: OpenHost) -> Iterator[Fleet]:
    """This host alone, for a stack that is known by its record and not by a profile."""
    from dsv4ctl.profile.schema import LOCAL

    with _closing(open_host(LOCAL)) as host:
        yield {LOCAL: open_place(LOCAL, host, supervisor, sys.executable, None)}


def open_place(name: str, host: "Host", supervisor: str, python: str, state_dir: str | None) -> Place:
    """What we do on one host that is open already."""
    home, root = _home_and_state_root(host, state_dir)
    return Place(
        name, host, Site(python, root, home), StateStore(host, root), make_supervisor(supervisor, host, root, python)
    )


def make_supervisor(kind: str, host: "Host", state_root: str, python: str) -> Supervisor:
    """The supervisor of a profile's `supervisor` key."""
    if kind == "systemd":
        from dsv4ctl.supervisors.systemd import SystemdSupervisor

        return SystemdSupervisor(host, state_root)
    from dsv4ctl.supervisors.process import ProcessSupervisor

    return ProcessSupervisor(host, state_root, python=python)


def _home_and_state_root(host: "Host", configured: str | None) -> tuple[str, str]:
    script = 'printf "%s\\n" "${HOME:?is not set}" "${XDG_STATE_HOME:-$HOME/.local/state}"'
    lines = host.run(["sh", "-c", script], deadline_s=20.0).text.split("\n")
    if len(lines) < 2 or not lines[0].startswith("/"):
        raise OperationFailed(f"{host.name} does not say where its home directory is", why=f"it printed {lines[:2]}")
    return lines[0], configured or f"{lines[1]}/{DIRECTORY_NAME}"


@contextmanager
def _closing(host: "Host") -> Iterator["Host"]:
    try:
        yield host
    finally:
        host.close()
