"""The hosts of one stack, each with what we do there: its supervisor, its state directory, its engine's interpreter."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook, DeadlineExceeded, OperationFailed
from dsv4ctl.facts import GpuFact, read_gpus
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
            asks = any(worker.spec.gpus for worker in profile.workers if worker.spec.host == name)
            gpus, unseen = gpus_of(host) if asks else ((), "")
            state_dir = entry.state_dir if entry else None
            fleet[name] = open_place(name, host, profile.supervisor, python, state_dir, gpus, unseen)
        yield fleet


def gpus_of(host: "Host") -> tuple[tuple[GpuFact, ...], str]:
    """The GPUs of a host, and why they could not be looked at; empty where they could.

    Raises:
        HostUnreachable
    """
    try:
        return read_gpus(host), ""
    except (OperationFailed, DeadlineExceeded) as error:
        # A stack can be ended, and a plan be looked at, where no GPU answers; starting it there is refused.
        return (), error.why or error.what


@contextmanager
def open_local(supervisor: str, open_host: OpenHost) -> Iterator[Fleet]:
    """This host alone, for a stack that is known by its record and not by a profile."""
    from dsv4ctl.profile.schema import LOCAL

    with _closing(open_host(LOCAL)) as host:
        yield {LOCAL: open_place(LOCAL, host, supervisor, sys.executable, None)}


def open_place(
    name: str,
    host: "Host",
    supervisor: str,
    python: str,
    state_dir: str | None,
    gpus: tuple[GpuFact, ...] = (),
    gpus_unseen: str = "",
) -> Place:
    """What we do on one host that is open already. `~/` in a path is the person's home there."""
    home, state_home, uid = _person(host)
    root = _expanded(state_dir, home) if state_dir else f"{state_home}/{DIRECTORY_NAME}"
    tmp = f"/tmp/dsv4ctl-{uid}"  # noqa: S108 - checked to be ours
    site = Site(_expanded(python, home), root, home, tmp, gpus, gpus_unseen)
    return Place(name, host, site, StateStore(host, root), make_supervisor(supervisor, host, root, site.python))


def make_supervisor(kind: str, host: "Host", state_root: str, python: str) -> Supervisor:
    """The supervisor of a profile's `supervisor` key."""
    if kind == "systemd":
        from dsv4ctl.supervisors.systemd import SystemdSupervisor

        return SystemdSupervisor(host, state_root)
    from dsv4ctl.supervisors.process import ProcessSupervisor

    return ProcessSupervisor(host, state_root, python=python)


def _expanded(path: str, home: str) -> str:
    return home + path[1:] if path.startswith("~/") else path


def _person(host: "Host") -> tuple[str, str, int]:
    """Who we are on a host: home directory, where state is kept, numeric user."""
    # The XDG specification has relative paths ignored.
    script = """
        case $XDG_STATE_HOME in /*) s=$XDG_STATE_HOME ;; *) s=${HOME:+$HOME/.local/state} ;; esac
        printf '%s\\n' "$HOME" "$s" "$(id -u)"
    """
    try:
        lines = host.run(["sh", "-c", script], deadline_s=20.0).text.split("\n")
    except OperationFailed as error:
        raise CannotLook(
            f"{host.name} cannot be asked anything: {error.what}", why=error.why, hint=error.hint
        ) from error
    home, state, uid = [*lines, "", "", ""][:3]
    if not (home or state).startswith("/") or not uid.isdigit():
        raise CannotLook(
            f"{host.name} does not say where its home directory is",
            why=f"HOME is {home or 'not set'}",
            hint="set HOME to an absolute path",
        )
    return home or state, state, int(uid)


@contextmanager
def _closing(host: "Host") -> Iterator["Host"]:
    try:
        yield host
    finally:
        host.close()
