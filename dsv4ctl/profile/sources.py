"""Reading profiles as plain tables that remember the file and line of every key; `extends` and merging."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.keys import DEFAULT, KeyPath, Origin, Problem, ProfileError, dotted
from dsv4ctl.profile.statements import locate, paths_in

Table = Mapping[str, Any]

EXTENDS = "extends"
WITHOUT = "without"
FILE_KEYS = (EXTENDS, WITHOUT)
"""Keys that say how a file is read. They are used up by reading and are no part of the profile."""


@dataclass(frozen=True)
class Document:
    """Tables as TOML has them (lists are tuples), with the origin of every table and value by its key path,
    and the file itself for what nobody set."""

    data: Table
    origins: Mapping[KeyPath, Origin]
    file: Origin = DEFAULT

    def origin(self, path: KeyPath) -> Origin | None:
        """Where `path` was set, or the nearest table or list around it; None when nobody set any of them."""
        for length in range(len(path), 0, -1):
            if origin := self.origins.get(path[:length]):
                return origin
        return None

    def nearest(self, path: KeyPath) -> Origin:
        """`origin`, or else the file (without a line) that names the profile, where the value would belong."""
        if origin := self.origin(path):
            return origin
        named = self.origins.get(("name",)) or next(iter(self.origins.values()), self.file)
        return Origin(named.source)


def freeze(value: Any) -> Any:  # noqa: ANN401 - whatever TOML may hold
    """The same value with every list turned into a tuple, at any depth."""
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def read_text(path: Path, *, shown: str) -> str:
    """The text of one file. `shown` names it in messages.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown}: a profile is UTF-8 text, and byte {error.start} is not") from error
    except OSError as error:
        raise UsageError(f"{shown}: cannot read the profile: {error.strerror}") from error


def parse_document(text: str, *, shown: str) -> Document:
    """One file's text as it stands, `extends` not followed. `shown` names the file in messages.

    Raises:
        UsageError: it is not TOML.
    """
    try:
        data = freeze(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{shown}: not valid TOML: {error}") from error
    return Document(
        data, {path: Origin(shown, dotted(path), line) for path, line in locate(text).items()}, Origin(shown)
    )


def document_of(data: Table, source: str) -> Document:
    """Tables that come from no file, such as those of `--set`."""
    frozen = freeze(data)
    return Document(frozen, {path: Origin(source, dotted(path)) for path in paths_in(frozen)})


def merge(base: Document, over: Document) -> Document:
    """`over` on top of `base`: tables merge key by key, any other value (also a list) replaces what was there."""
    origins = dict(base.origins)
    data = _merge_tables(base.data, over.data, (), origins)
    origins.update(over.origins)
    return Document(data, origins, over.file)


def _merge_tables(base: Table, over: Table, path: KeyPath, origins: dict[KeyPath, Origin]) -> Table:
    merged = dict(base)
    for key, value in over.items():
        here = (*path, key)
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge_tables(merged[key], value, here, origins)
        else:
            _forget(origins, here)
            merged[key] = value
    return merged


def _forget(origins: dict[KeyPath, Origin], path: KeyPath) -> None:
    for known in [known for known in origins if known[: len(path)] == path]:
        del origins[known]


def without(document: Document, path: KeyPath) -> Document | None:
    """The document less one key (with all below it); None when it has no such key."""
    if path not in document.origins:
        return None
    origins = dict(document.origins)
    _forget(origins, path)
    return Document(prune(document.data, path), origins, document.file)


def prune(node: Any, path: KeyPath) -> Any:  # noqa: ANN401 - whatever TOML may hold
    """The same tables less the key at `path`, which must be there."""
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return (*node[:key], prune(node[key], rest), *node[key + 1 :])
    smaller = {name: value for name, value in node.items() if name != key}
    return {name: prune(value, rest) if name == key else value for name, value in node.items()} if rest else smaller


def split_key(text: str) -> KeyPath | None:
    """A dotted TOML key such as `env.OMP_NUM_THREADS` as a path; None when it is not one."""
    try:
        node: Any = tomllib.loads(f"{text} = 0") if "\n" not in text and "=" not in text else None
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(node, Mapping):
        ((key, node),) = node.items()
        path.append(key)
    return tuple(path) or None


def take_file_keys(document: Document) -> tuple[Document, str | None, tuple[str, ...]]:
    """The document less the keys of `FILE_KEYS`; the profile it extends; the keys it leaves out of that one.

    Raises:
        ProfileError: one of them has the wrong type, or `without` stands alone.
    """
    extends = document.data.get(EXTENDS)
    left_out = document.data.get(WITHOUT, ())
    problems = []

    def problem(key: str, what: str) -> None:
        problems.append(Problem(document.origins[(key,)], key, what))

    if extends is not None and not (isinstance(extends, str) and extends):
        problem(EXTENDS, "must be the name of a built-in profile, or a path relative to this file")
    if not (isinstance(left_out, tuple) and all(isinstance(key, str) for key in left_out)):
        problem(WITHOUT, 'must be a list of key paths, such as ["prefill", "env.OMP_NUM_THREADS"]')
    elif left_out and extends is None:
        problem(WITHOUT, 'leaves keys out of an extended profile; say which with extends = "NAME"')
    if problems:
        raise ProfileError(problems)
    for key in FILE_KEYS:
        document = without(document, (key,)) or document
    return document, extends, left_out
