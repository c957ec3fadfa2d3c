"""Which stack a command is about: the one of a profile, or, when none is named, the only one that is recorded here."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4ctl.errors import NothingRunning, UsageError
from dsv4ctl.fleet import Fleet, OpenHost, open_fleet, open_local
from dsv4ctl.state import StackRecord, planned
from dsv4ctl.supervisors.base import UnitHandle

if TYPE_CHECKING:
    from dsv4ctl.stack import Stack


@dataclass(frozen=True)
class Target:
    """A stack that runs, or ran: its hosts, and what is recorded on each. `stack` is the plan when a profile is known.

    `unrecorded` are hosts whose record is gone though units of the stack are known there.
    """

    name: str
    fleet: Fleet
    records: tuple[tuple[str, StackRecord], ...]
    stack: "Stack | None"
    unrecorded: tuple[str, ...] = ()


@contextmanager
def open_target(ref: str | None, open_host: OpenHost, *, ended: bool = False) -> Iterator[Target]:
    """Find the stack and open its hosts. `ref` is a profile, or the name of a stack that is recorded on this host.

    Without a name, and with no DSV4CTL_PROFILE and no ./dsv4ctl.toml, the records of this host decide: one stack is the
    one that is meant.

    `ended`: a stack that is not there any more will do, as its profile plans it; its logs are still there.

    Raises:
        NothingRunning: no stack of ours is recorded.
        UsageError: several are, or the profile is wrong.
        HostUnreachable
    """
    recorded = _recorded_here(open_host) if is_unnamed(ref) else _recorded_under(ref, open_host)
    if len(recorded) > 1:
        raise UsageError(
            f"several stacks are recorded on this host: {', '.join(sorted(recorded))}", hint="name the one you mean"
        )
    if recorded:
        ((name, record),) = recorded.items()
        with open_local(record.supervisor, open_host) as fleet:
            yield Target(name, fleet, tuple((host, record) for host in fleet), None)
        return
    with _open_by_profile(ref, open_host, ended=ended) as target:
        yield target


def is_unnamed(ref: str | None) -> bool:
    """Whether nobody says which stack is meant: no name, no variable, no file here."""
    from dsv4ctl.profile.lookup import LOCAL_FILE, VARIABLE

    return not ref and VARIABLE not in os.environ and not Path(LOCAL_FILE).is_file()


def _recorded_under(ref: str | None, open_host: OpenHost) -> dict[str, StackRecord]:
    """The recorded stack of that name, where no profile has it: its file may be gone, or the name was set by --set.

    Raises:
        NothingRunning: it was one once.
    """
    from dsv4ctl.profile.lookup import available

    if not ref or "/" in ref or ref.endswith(".toml") or ref in available():
        return {}
    with open_local("process", open_host) as fleet:
        (place,) = fleet.values()
        if (record := place.store.load(ref)) is not None:
            return {ref: record}
        if place.store.knew(ref):
            raise NothingRunning(
                f"stack {ref} does not run on this host; it did once",
                hint="name its profile to start it or read its logs",
            )
    return {}


def _recorded_here(open_host: OpenHost) -> dict[str, StackRecord]:
    with open_local("process", open_host) as fleet:
        (place,) = fleet.values()
        found = {name: place.store.load(name) for name in place.store.stacks()}
    return {name: record for name, record in found.items() if record is not None}


@contextmanager
def _open_by_profile(ref: str | None, open_host: OpenHost, *, ended: bool) -> Iterator[Target]:
    from dsv4ctl.profile.here import load_here
    from dsv4ctl.stack import build_stack

    loaded = load_here(ref)
    with open_fleet(loaded.profile, open_host) as fleet:
        stack = build_stack(loaded, {name: place.site for name, place in fleet.items()})
        records: list[tuple[str, StackRecord]] = []
        unrecorded: list[str] = []
        for name, place in fleet.items():
            record = place.store.load(stack.name)
            if record is None and (record := record_from_units(stack, name, fleet)) is not None:
                unrecorded.append(name)
            if record is not None:
                records.append((name, record))
        if not records and ended:
            records = [(name, _planned(stack, name)) for name in fleet]
        if not records:
            raise NothingRunning(
                f"no stack {stack.name} of ours is known on {', '.join(fleet)}",
                hint=f"`dsv4ctl serve {ref or stack.name}` starts it",
            )
        yield Target(stack.name, fleet, tuple(records), stack, tuple(unrecorded))


def record_from_units(stack: "Stack", host: str, fleet: Fleet) -> StackRecord | None:
    """A record made from the profile and the supervisor's own memory, for a host whose record was deleted."""
    supervisor = fleet[host].supervisor
    handles = {worker.name: supervisor.find(worker.unit) for worker in stack.on(host)}
    return _planned(stack, host, handles) if any(handles.values()) else None


def _planned(stack: "Stack", host: str, handles: Mapping[str, UnitHandle | None] | None = None) -> StackRecord:
    workers = tuple(planned(worker, (handles or {}).get(worker.name)) for worker in stack.on(host))
    return StackRecord(
        stack.name, "", stack.supervisor, "", stack.entry.url, stack.served_model, ready=False, workers=workers
    )
