"""Profiles as seen from this process: its environment, its directory, its machine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4ctl.errors import UsageError
from dsv4ctl.knobs import Linted, lint_on
from dsv4ctl.profile.checks import asked_of
from dsv4ctl.profile.gpus import choose, shown
from dsv4ctl.profile.loading import LoadedProfile, load_profile
from dsv4ctl.profile.lookup import available
from dsv4ctl.profile.schema import LOCAL

if TYPE_CHECKING:
    from dsv4ctl.facts import GpuFact


@dataclass(frozen=True)
class Listed:
    """A profile that can be named. `problem` says why it cannot be loaded; then the rest is unknown."""

    name: str
    path: str
    description: str | None
    workers: tuple[str, ...]
    problem: str | None


def list_here() -> tuple[Listed, ...]:
    """Every profile that can be named here, built-in or a person's own; a wrong one is listed with its problem."""
    listed: list[Listed] = []
    for name, path in available().items():
        try:
            profile = load_here(str(path)).profile
        except UsageError as error:
            listed.append(Listed(name, str(path), None, (), str(error)))
        else:
            workers = tuple(worker.name for worker in profile.workers)
            listed.append(Listed(name, str(path), profile.description, workers, None))
    return tuple(listed)


def load_here(ref: str | None, sets: Sequence[str] = ()) -> LoadedProfile:
    """`load_profile` with this process's environment and working directory."""
    return load_profile(ref, environ=os.environ, cwd=working_directory(), sets=sets)


def working_directory() -> Path:
    """Where this process stands.

    Raises:
        UsageError: that directory has been removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the directory that this was started in does not exist any more", hint="cd .") from error


@dataclass(frozen=True)
class WorkerGpus:
    """The GPUs that one worker asks for, and the cards that they are; `unresolved` says what has none, and why."""

    worker: str
    host: str
    gpus: tuple[int | str, ...]
    cards: "tuple[GpuFact, ...]"
    unresolved: tuple[str, ...]

    def __str__(self) -> str:
        words = [shown(card) for card in self.cards]
        words += [f"{sentence} (not resolved)" for sentence in self.unresolved]
        return f"{self.worker} on {self.host}: GPUs {', '.join(words)}"


def gpus_here(loaded: LoadedProfile) -> tuple[WorkerGpus, ...]:
    """The GPUs of every worker that asks for some, as far as they are this machine's: no other is looked at."""
    from dsv4ctl.fleet import gpus_of
    from dsv4ctl.hosts.local import LocalHost

    profile = loaded.profile
    asking = [worker for worker in profile.workers if worker.spec.gpus]
    if not asking:
        return ()
    host = LocalHost()
    try:
        there, unseen = gpus_of(host) if any(worker.spec.host == LOCAL for worker in asking) else ((), "")
    finally:
        host.close()
    chosen = choose(LOCAL, asked_of(profile, LOCAL), there, unseen)
    found: list[WorkerGpus] = []
    for worker in asking:
        spec = worker.spec
        why: list[str] = []
        if spec.host != LOCAL:
            why = [f"{gpu}: {spec.host} is not looked at" for gpu in spec.gpus]
        why += [f"{item.gpu} {item.why}" for item in chosen.missing if item.worker == worker.name]
        cards = [card for at in range(len(spec.gpus)) for card in chosen.cards.get((worker.name, at), ())]
        found.append(WorkerGpus(worker.name, spec.host, spec.gpus, tuple(cards), tuple(why)))
    return tuple(found)


def lint_here(loaded: LoadedProfile) -> Linted:
    """Check all names against this machine's engine for what runs here, and against the snapshot for other hosts.

    Nobody is asked over a network: a profile can be checked on a laptop.
    """
    from dsv4ctl.hosts.local import LocalHost

    host = LocalHost()
    try:
        return lint_on(loaded, {LOCAL: host}, {LOCAL: loaded.profile.engine.python or sys.executable})
    finally:
        host.close()
