"""The statements of a TOML text: which lines open a table or set a key, and where they stand."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsv4ctl.profile.keys import KeyPath

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
"""A key as it may be written, dotted or not, as a regular expression."""

_KEY = re.compile(rf"[ \t]*({KEY})[ \t]*=")


@dataclass(frozen=True)
class Statement:
    """A table's header, or a key with its value, over one line or several.

    `begin` and `end` are offsets, `line` counts from 1. `path` is the table that a header opens, or the key that is
    set. `values` are the key paths in its value, its own too, and those of a dotted key's tables.
    """

    begin: int
    end: int
    line: int
    text: str
    is_header: bool
    table: KeyPath
    path: KeyPath
    values: tuple[KeyPath, ...] = ()


def lines(text: str) -> list[str]:
    """The lines of a text with their ends. `splitlines` also splits at characters that are no line ends in TOML."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def statements(text: str) -> tuple[Statement, ...]:
    """The statements of a valid TOML text, in their order.

    `tomllib` keeps no positions, so it is asked about one statement at a time: a statement ends at the first line
    that makes it parse.
    """
    found: list[Statement] = []
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    pending, begin, line, offset = "", 0, 0, 0
    for number, piece in enumerate(lines(text), start=1):
        offset += len(piece)
        if not pending and not piece.split("#", 1)[0].strip():
            continue
        if not pending:
            begin, line = offset - len(piece), number
        pending += piece
        try:
            parsed = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        if pending.lstrip().startswith("["):
            table = _header_path(parsed, counts, is_array=pending.lstrip().startswith("[["))
            found.append(Statement(begin, offset, line, pending, True, table, table))
        else:
            values = tuple((*table, *path) for path in paths_in(parsed))
            found.append(Statement(begin, offset, line, pending, False, table, (*table, *_key(pending)), values))
        pending = ""
    return tuple(found)


def locate(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every table and key of a valid TOML text.

    Values inside a statement over several lines get the line on which the statement begins.
    """
    known: dict[KeyPath, int] = {}
    for statement in statements(text):
        if statement.is_header:
            for length in range(1, len(statement.path) + 1):
                known.setdefault(statement.path[:length], statement.line)
        for path in statement.values:
            known.setdefault(path, statement.line)
    return known


def _key(text: str) -> KeyPath:
    """The key that a statement sets, as it is written before its sign."""
    match = _KEY.match(text)
    assert match is not None
    node: Any = tomllib.loads(f"{match[1]} = 0")
    path: list[str] = []
    while isinstance(node, Mapping):
        ((name, node),) = node.items()
        path.append(name)
    return tuple(path)


def _header_path(parsed: Mapping[str, Any], counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """The key path a header opens; a name of an array of tables stands for its newest element."""
    names: list[str] = []
    node: Any = parsed
    while isinstance(node, Mapping) and node:
        ((name, node),) = node.items()
        names.append(name)
    path: KeyPath = ()
    for position, name in enumerate(names, start=1):
        path = (*path, name)
        if is_array and position == len(names):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def paths_in(value: object, path: KeyPath = ()) -> list[KeyPath]:
    """Every key path within a value, the value's own included (but not the empty one)."""
    found = [path] if path else []
    if isinstance(value, Mapping):
        for key, item in value.items():
            found += paths_in(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            found += paths_in(item, (*path, index))
    return found
