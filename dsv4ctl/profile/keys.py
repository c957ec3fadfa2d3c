"""Key paths, where a value came from, and what is wrong with it."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dsv4ctl.errors import UsageError

KeyPath = tuple[str | int, ...]

T = TypeVar("T")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(key: str) -> str:
    """A key as TOML writes it: bare where that is allowed, else quoted."""
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def dotted(path: Sequence[str | int]) -> str:
    """A key path for a person, e.g. `prefill.workers[0].port`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + toml_key(part)
    return text


@dataclass(frozen=True)
class Origin:
    """Where a value was set: a file with line (from 1) and key path, `--set`, or `default` for what nobody set."""

    source: str
    key: str = ""
    line: int | None = None

    @property
    def place(self) -> str:
        """The file and line, e.g. `profiles/cpu.toml:12`; or `--set`, `default`."""
        return f"{self.source}:{self.line}" if self.line is not None else self.source

    def __str__(self) -> str:
        return f"{self.place} {self.key}".rstrip()


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Valued(Generic[T]):
    """A value and where it was set."""

    value: T
    origin: Origin


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and what would be right, in one sentence: `PLACE: KEY WHAT`."""

    origin: Origin
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.origin.place}: {self.key} {self.what}".replace(":  ", ": ")


class ProfileError(UsageError):
    """A profile, or what `--set` made of it, is wrong; `problems` has every one of them."""

    def __init__(self, problems: Iterable[Problem], *, hint: str | None = None) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems), hint=hint)
