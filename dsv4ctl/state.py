"""What we keep about a running stack, on the host it runs on: how to find its units, and what they were started with.

STATE/stacks/NAME/stack.json    the record of the stack's workers on that host
STATE/stacks/NAME/journal/      one file an act
STATE/units/                    the supervisor's own records and the logs
"""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from dsv4ctl.errors import CannotLook, OperationFailed
from dsv4ctl.hosts.base import again_if_lost
from dsv4ctl.profile.gpus import kernel_id
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.supervisors.base import UnitHandle, check_unit_name

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host
    from dsv4ctl.stack import Worker

RECORD_VERSION = 1
DIRECTORY_NAME = "dsv4ctl"
RESTART_FILES = ("restart.json", "before.json")
"""What a co-restart that has not ended keeps beside the record (`restart.pending`)."""


@dataclass(frozen=True)
class CardRecord:
    """A GPU that a worker was given: which index it had then, where it is, and its own name (empty: not told)."""

    index: int
    pci_bus_id: str
    uuid: str
    numa_node: int | None


@dataclass(frozen=True)
class WorkerRecord:
    """One worker as it was planned, and the unit it became. Secrets are fingerprints. No handle: it was never started,
    or we were ended before its handle could be written; the supervisor may still know the unit by name. `cards` are its
    GPUs as they were found, whatever the profile calls them."""

    name: str
    role: str
    unit: str
    listen: str
    port: int
    ports: Mapping[str, int]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    handle: UnitHandle | None = None
    cards: tuple[CardRecord, ...] = ()


@dataclass(frozen=True)
class StackRecord:
    """The workers of one stack on one host. `started_at` is the wall clock, for people; `ready`: the canaries passed.

    `shm` are the files in /dev/shm that its processes had open when last looked: what a crash may leave behind. `sets`
    is what was set on top of the profile, secrets as fingerprints (`restart.layers`)."""

    stack: str
    profile: str
    supervisor: Literal["process", "systemd"]
    started_at: str
    entry_url: str
    served_model: str
    ready: bool
    workers: tuple[WorkerRecord, ...]
    shm: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()

    def with_handle(self, name: str, handle: UnitHandle) -> "StackRecord":
        """The record after worker `name` was started."""
        return replace(self, workers=tuple(replace(w, handle=handle) if w.name == name else w for w in self.workers))


def planned(worker: "Worker", handle: UnitHandle | None = None) -> WorkerRecord:
    """The record of a worker as it is planned; secrets become fingerprints here, before anything is stored."""
    return WorkerRecord(
        name=worker.name,
        role=worker.role,
        unit=worker.unit,
        listen=worker.listen,
        port=worker.port,
        ports=worker.ports,
        argv=redact_argv(worker.argv),
        env=redact_env(worker.env),
        handle=handle,
        cards=tuple(
            CardRecord(card.index, kernel_id(card.pci_bus_id), card.uuid, card.numa_node) for card in worker.cards
        ),
    )


class StateStore:
    """Reads and writes the records of one host."""

    def __init__(self, host: "Host", root: str) -> None:
        self._host = host
        self.root = root

    def directory(self, stack: str) -> str:
        """Where everything about one stack is kept."""
        return posixpath.join(self.root, "stacks", stack)

    def journal_directory(self, stack: str) -> str:
        return posixpath.join(self.directory(stack), "journal")

    def lock_path(self, stack: str) -> str:
        return posixpath.join(self.directory(stack), "lock")

    def model_directory(self, model: str) -> str:
        """Where a generated model lies; it is shared by all stacks of the host."""
        return posixpath.join(self.root, "models", model)

    def load(self, stack: str) -> StackRecord | None:
        """The record of a stack, or None when there is none.

        Raises:
            OperationFailed: there is one and it cannot be understood.
            HostUnreachable
        """
        path = self._record_path(stack)
        try:
            raw = self._host.read(path)
        except FileNotFoundError:
            return None
        except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
            raise CannotLook(
                f"{path} on {self._host.name} cannot be read",
                why=str(error),
                hint="run this as the user who started the stack, or set XDG_STATE_HOME to where its state is",
            ) from error
        try:
            return _parse(raw, stack)
        except (ValueError, OperationFailed) as error:
            raise CannotLook(
                f"{path} on {self._host.name} is not a record of ours",
                why=str(error).splitlines()[0],
                hint="move it away; `dsv4ctl status PROFILE` then finds what runs by the supervisor's own records",
            ) from error

    def save(self, record: StackRecord) -> None:
        """Write the record, atomically.

        Raises:
            OperationFailed: not writable or disk full; the record before stays whole.
        """
        body = {"version": RECORD_VERSION, **asdict(record)}
        again_if_lost(lambda: self._host.write(self._record_path(record.stack), json.dumps(body, indent=1).encode()))

    def delete(self, stack: str) -> None:
        """Forget a stack that is proven to be gone, and a restart of it that never ended. Journals and logs stay."""
        paths = [self._record_path(stack), *(posixpath.join(self.directory(stack), name) for name in RESTART_FILES)]
        self._host.run(["rm", "-f", "--", *paths], deadline_s=10.0)

    def knew(self, stack: str) -> bool:
        """Whether a stack of that name ever ran here: its journals stay."""
        done = self._host.run(["test", "-d", self.journal_directory(stack)], deadline_s=10.0, check=False)
        return done.returncode == 0

    def stacks(self) -> tuple[str, ...]:
        """Names of the stacks that have a record on this host."""
        script = 'cd "$1" 2>/dev/null || exit 0; for f in */stack.json; do [ ! -f "$f" ] || echo "${f%/*}"; done'
        folder = posixpath.join(self.root, "stacks")
        listed = self._host.run(["sh", "-c", script, "sh", folder], deadline_s=10.0)
        return tuple(sorted(listed.text.split()))

    def _record_path(self, stack: str) -> str:
        return posixpath.join(self.directory(stack), "stack.json")


def _parse(raw: bytes, stack: str) -> StackRecord:
    """The record in a file, every type checked. What it says is later handed to `kill` and `rm`.

    Raises:
        ValueError: it is not a record of ours, in this version.
    """
    from pydantic import TypeAdapter

    body = json.loads(raw)
    if not isinstance(body, dict) or body.pop("version", None) != RECORD_VERSION:
        raise ValueError(f"this dsv4ctl reads records of version {RECORD_VERSION}")
    record = TypeAdapter(StackRecord).validate_json(json.dumps(body), strict=True)
    if record.stack != stack:
        raise ValueError(f"it is of another stack, {record.stack!r}")
    if not record.workers:
        raise ValueError("it has no workers")
    for worker in record.workers:
        check_unit_name(worker.unit)
        if worker.handle is not None and worker.handle.unit != worker.unit:
            raise ValueError(f"the handle of {worker.name} is of another unit, {worker.handle.unit!r}")
    return record
