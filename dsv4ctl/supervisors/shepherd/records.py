"""What is kept about the units of one state directory: a JSON record each, under units/."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .processes import boot_id, family, is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator


class Failure(Exception):
    """What could not be done and why; the caller on the other machine raises it as its own error."""

    def __init__(self, what: str, why: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why


class Record(NamedTuple):
    """One start of a unit. A process is [pid, start time]; `members` are those seen alive at the last look.

    `exit_code` is negative for a signal, and None while the worker runs or when nobody saw how it ended.
    """

    unit: str
    shepherd: list[int]
    boot_id: str
    worker: list[int] | None = None
    members: list[list[int]] = []  # noqa: RUF012 (a NamedTuple's default, replaced and never changed)
    exit_code: int | None = None
    ended_at: str | None = None

    def living(self) -> dict[int, int]:
        """Every living process of the unit, the shepherd among them: pid to start time."""
        if self.boot_id != boot_id():
            return {}
        known = [self.shepherd, *self.members] + ([self.worker] if self.worker else [])
        return family((pid, ticks) for pid, ticks in known)

    def has(self, process: list[int] | None) -> bool:
        """Whether that process of the record lives."""
        return process is not None and self.boot_id == boot_id() and is_alive(process[0], process[1])


class Records:
    """The records under STATE_DIR/units."""

    def __init__(self, state_dir: str) -> None:
        self.directory = Path(state_dir) / "units"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While held, nobody else changes which start a unit's name belongs to."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(str(self.directory / ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def path(self, unit: str) -> Path:
        """Where the record of a unit is."""
        return self.directory / (unit + ".json")

    def read(self, unit: str) -> Record | None:
        """The record of the last start of that name, or None."""
        try:
            return Record(**json.loads(self.path(unit).read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise Failure(f"cannot understand {self.path(unit)}", str(error)) from error

    def write(self, record: Record) -> None:
        """Replace the record of that name. A reader sees the old one or the new one."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path(record.unit)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with os.fdopen(private(str(temporary)), "w") as file:
                json.dump(record._asdict(), file)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise

    def remove(self, unit: str) -> None:
        """Remove the record, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.path(unit).unlink()


def private(path: str) -> int:
    """Open a new or emptied file for writing that only its owner may read; returns the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
