"""Gathering a bundle: every host of the stack, side by side, within a time. What could not be had is a member too."""

import json
import os
import platform
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dsv4ctl import __version__
from dsv4ctl.doctor.bundle.archive import Bundle, Member
from dsv4ctl.doctor.bundle.host import host_texts
from dsv4ctl.drift import planned_tail
from dsv4ctl.errors import Dsv4Error
from dsv4ctl.findings import Finding
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.journal import utc_now
from dsv4ctl.profile.show import as_data, to_toml
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.restart.evidence import Piece, had, worker_pieces
from dsv4ctl.restart.running import Running, read_running
from dsv4ctl.scrubbing import Scrubber
from dsv4ctl.serving_module import serving_argv, serving_input
from dsv4ctl.state import StackRecord, planned

if TYPE_CHECKING:
    from dsv4ctl.profile.loading import LoadedProfile
    from dsv4ctl.stack import Stack, Worker

JOURNALS = 10
"""So many of a stack's journals are taken from each host, the newest."""

_JOURNAL_BYTES = 256 * 1024
_SERVING_WITHIN_S = 60.0
_LIST_WITHIN_S = 15.0
_AT_ONCE = 8
_MISSING = ".missing.txt"
_NOT_RUNNING = "it does not run, so it has no environment, command line, metrics, loads or stacks of threads"
# Their names begin with their time.
_NEWEST = '[ ! -d "$1" ] || ls -1 "$1" | sort | tail -n "$2"'
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Subject:
    """What a bundle is about: a stack's plan and profile where there is one, its records where it runs or ran.

    `unreachable` are hosts that could not be opened, each with the reason.
    """

    name: str
    fleet: Fleet
    stack: "Stack | None" = None
    loaded: "LoadedProfile | None" = None
    records: tuple[tuple[str, StackRecord], ...] = ()
    unreachable: tuple[tuple[str, str], ...] = ()


def collect(
    subject: Subject,
    findings: Sequence[Finding],
    *,
    more: Mapping[str, bytes] = {},
    within_s: float = 120.0,
    tell: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    now: Callable[[], datetime] = utc_now,
    environ: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Bundle:
    """Gather everything. Nothing is written, and what fails is in the bundle as a member that says why.

    Args:
        subject: what it is about.
        findings: what `doctor` found.
        more: further members by name, such as the report of a deep look.
        within_s: what has not begun by then is left out, and said; the last answers may take a minute longer.
        tell: gets a sentence before each part.
        check: called before each question; what it raises ends it, when what was asked before has been answered.
        now, environ, clock: passed in for tests. The secrets of `environ` (ours) are taken out of every text, too.

    Raises:
        Interrupted: by `check`.
    """
    end = clock() + within_s
    made_at = now()
    running, unread = _running(subject)
    tell(f"asking {', '.join(subject.fleet) or 'nobody'}")
    pieces = [*_own_pieces(subject, findings, more), *_stack_pieces(subject, running)]
    found: dict[str, tuple[bytes, str]] = {}

    def had_in_time(piece: Piece) -> tuple[bytes, str]:
        check()
        return had(piece) if clock() < end else (b"", "there was no time left for it")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hosts = {name: pool.submit(_host, place, subject.name, check) for name, place in subject.fleet.items()}
        asked = pool.map(had_in_time, pieces)
        for (name, _), answer in zip(pieces, asked, strict=True):
            found[name] = answer
        for name, future in hosts.items():
            found |= {f"hosts/{_safe(name)}/{file}": answer for file, answer in future.result().items()}
    found |= {f"hosts/{_safe(name)}/everything": (b"", why) for name, why in subject.unreachable}
    found |= {f"hosts/{_safe(name)}/running": (b"", why) for name, why in unread.items()}
    check()
    scrubber = _scrubber(subject, running, environ)
    members = [_member(name, data, why, scrubber) for name, (data, why) in sorted(found.items())]
    about = _about(subject, made_at, members)
    top = f"dsv4-bundle-{_safe(subject.name)}-{made_at:%Y%m%dT%H%M%S}"
    return Bundle(top, made_at, (Member("about.txt", scrubber.scrub(about.encode())), *members))


def _running(subject: Subject) -> tuple[list[Running], dict[str, str]]:
    """Every worker as it was found, and the hosts on which that could not be asked, with the reason.

    Where there is no record the plan names the units: their logs stay, and the supervisor may know them.
    """
    found: list[Running] = []
    unread: dict[str, str] = {}
    recorded = dict(subject.records)
    for host in subject.fleet:
        record = recorded.get(host) or _planned_record(subject, host)
        try:
            found += read_running(subject.fleet, [(host, record)] if record is not None else [])
        except (Dsv4Error, OSError) as error:
            unread[host] = str(error)
    return found, unread


def _planned_record(subject: Subject, host: str) -> "StackRecord | None":
    stack = subject.stack
    if stack is None:
        return None
    workers = tuple(planned(worker) for worker in stack.on(host))
    return StackRecord(
        stack.name, "", stack.supervisor, "", stack.entry.url, stack.served_model, ready=False, workers=workers
    )


def _scrubber(subject: Subject, running: Sequence[Running], environ: Mapping[str, str]) -> Scrubber:
    workers = subject.stack.workers if subject.stack is not None else ()
    environs = [environ, *(one.environ or {} for one in running), *(worker.env for worker in workers)]
    argvs = [*(one.argv or () for one in running), *(worker.argv for worker in workers)]
    return Scrubber(environs, argvs)


def _member(name: str, data: bytes, why: str, scrubber: Scrubber) -> Member:
    if not why:
        return Member(name, scrubber.scrub(data))
    said = scrubber.scrub(f"{name} could not be had: {why}\n".encode())
    # What there was of it before it failed may still help.
    return Member(f"{name}{_MISSING}", said + scrubber.scrub(data), said.decode().strip())


def _own_pieces(subject: Subject, findings: Sequence[Finding], more: Mapping[str, bytes]) -> list[Piece]:
    """What is known here already."""
    pieces: list[Piece] = [("findings.json", lambda: _json([asdict(finding) for finding in findings]))]
    pieces += [(name, lambda data=data: data) for name, data in more.items()]  # type: ignore[misc]
    loaded, stack = subject.loaded, subject.stack
    if loaded is not None:
        pieces.append(("profile.toml", lambda: to_toml(loaded.profile).encode()))
        pieces.append(("profile-origins.json", lambda: _json(as_data(loaded))))
    for worker in stack.workers if stack is not None else ():
        pieces.append((f"planned/{worker.name}.json", lambda worker=worker: _planned(worker)))  # type: ignore[misc]
    return pieces


def _planned(worker: "Worker") -> bytes:
    return _json(
        {
            "host": worker.host,
            "unit": worker.unit,
            "ports": dict(worker.ports),
            "argv": redact_argv(worker.argv),
            "env": redact_env(worker.env),
        }
    )


def _stack_pieces(subject: Subject, running: Sequence[Running]) -> list[Piece]:
    """What the hosts know of the stack's workers: logs, metrics, stacks of threads, patches, records, journals."""
    pieces: list[Piece] = []
    for name, place in subject.fleet.items():
        folder = f"hosts/{_safe(name)}"
        mine = [one for one in running if one.host == name]
        pieces += [(f"{folder}/{file}", get) for one in mine for file, get in worker_pieces(place, one)]
        pieces += [(f"{folder}/{one.name}/running", _never(_NOT_RUNNING)) for one in mine if not one.alive]
        pieces += [(f"{folder}/{one.name}/env.txt", _never(one.unread)) for one in mine if one.unread]
        for worker in subject.stack.on(name) if subject.stack is not None else ():
            if worker.role != "router":
                flags = planned_tail(worker.argv)[3:]
                asked = (("patches", ("patches", "--json")), ("hazards", ("hazards", "--json", "--", *flags)))
                pieces += [
                    (f"{folder}/{worker.name}/{what}.json", _serving(place, worker, words)) for what, words in asked
                ]
        if any(host == name for host, _ in subject.records):
            pieces.append((f"{folder}/stack.json", _reading(place, _record_path(place, subject.name))))
    return pieces


def _host(place: Place, stack: str, check: Callable[[], None]) -> dict[str, tuple[bytes, str]]:
    """What one host says of itself, and the stack's journals there.

    Raises:
        Interrupted: by `check`.
    """
    found: dict[str, tuple[bytes, str]] = {}
    check()
    try:
        found |= host_texts(place.host, place.site.python)
    except (Dsv4Error, OSError) as error:
        found["everything"] = (b"", str(error))
    try:
        folder = place.store.journal_directory(stack)
        argv = ["sh", "-c", _NEWEST, "sh", folder, str(JOURNALS)]
        names = place.host.run(argv, deadline_s=_LIST_WITHIN_S).text.split()
    except (Dsv4Error, OSError) as error:
        return found | {"journals": (b"", str(error))}
    check()
    return found | {f"journals/{name}": had((name, _reading(place, posixpath.join(folder, name)))) for name in names}


def _serving(place: Place, worker: "Worker", words: Sequence[str]) -> Callable[[], bytes]:
    """What `python -m serving` says for a worker. Exit status 1 means that an engine would not start so: the answer is
    there all the same."""

    def ask() -> bytes:
        argv = serving_argv(planned_tail(worker.argv)[0], words)
        stdin = serving_input(worker.env)
        done = place.host.run(argv, deadline_s=_SERVING_WITHIN_S, stdin=stdin, check=False)
        if done.returncode not in {0, 1} or not done.stdout:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise ValueError(lines[-1] if lines else f"exit status {done.returncode}")
        return done.stdout

    return ask


def _reading(place: Place, path: str) -> Callable[[], bytes]:
    return lambda: place.host.read(path, offset=-_JOURNAL_BYTES)


def _never(why: str) -> Callable[[], bytes]:
    def fail() -> bytes:
        raise ValueError(why)

    return fail


def _record_path(place: Place, stack: str) -> str:
    return posixpath.join(place.store.directory(stack), "stack.json")


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, default=str).encode()


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)


def _about(subject: Subject, made_at: datetime, members: Sequence[Member]) -> str:
    lines = [
        f"stack {subject.name}, {made_at.isoformat(timespec='seconds')}",
        f"dsv4ctl {__version__} on {platform.platform()}, Python {platform.python_version()}",
        f"hosts: {', '.join((*subject.fleet, *(name for name, _ in subject.unreachable))) or 'none'}",
        "",
        "Secrets are fingerprints: values of variables named like a key, token, secret or password, of flags such as",
        "--api-key, and what looks like one in any text. Two fingerprints are the same only if the secrets are. What",
        "has no such name and no such form is still in it: look before you hand it out.",
        "",
        *(f"{len(member.data):>9}  {member.name}" for member in members),
    ]
    return "".join(f"{line}\n" for line in lines)
