"""One value in a TOML text changed, put in or taken out; every other byte stays as it is.

A text is taken apart into its statements, and only in the one that has the value is anything changed. How the value is
spelt there, also within an inline table or a list, is told by tomlkit. Which of the places with that spelling is meant
is then tried: the right one changes what the statement says as it should be changed.
"""

import contextlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit

from dsv4ctl.errors import Refused
from dsv4ctl.profile.keys import KeyPath, dotted, toml_key
from dsv4ctl.profile.statements import KEY, Statement, lines, statements

_BLANK = " \t\r\n"


def written(text: str, path: KeyPath) -> str | None:
    """The value at a key path as it is spelt in a valid TOML text; None where the text does not set it."""
    statement = _setting(text, path)
    if statement is None:
        return None
    # A truth value is handed out bare, unlike all others.
    return str(tomlkit.item(_at(tomlkit.parse(statement.text), _within(statement, path))).as_string())


def replaced(text: str, path: KeyPath, spelt: str) -> str:
    """The text with another value at a key path that it sets. `spelt` is TOML, such as `15` or `"2.5"`."""
    statement = _setting(text, path)
    assert statement is not None
    within, old = _within(statement, path), written(text, path)
    assert old is not None
    wanted = _with(tomllib.loads(statement.text), within, tomllib.loads(f"value = {spelt}")["value"])
    places = re.finditer(re.escape(old), statement.text)
    return _first(text, statement, path, (match.span() for match in places), spelt, wanted)


def _first(
    text: str, statement: Statement, path: KeyPath, spans: Iterable[tuple[int, int]], spelt: str, wanted: object
) -> str:
    """The text with the first of these spans of a statement spelt otherwise that makes it say what is wanted.

    Raises:
        Refused: none does.
    """
    for begin, end in spans:
        candidate = statement.text[:begin] + spelt + statement.text[end:]
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if _filled(tomllib.loads(candidate)) == wanted:
                return text[: statement.begin] + candidate + text[statement.end :]
    raise Refused(
        f"line {statement.line}: {dotted(path)} cannot be changed without what is beside it", hint="change it by hand"
    )


def _with(node: Any, path: KeyPath, value: object) -> Any:  # noqa: ANN401 - whatever TOML may hold
    """The same tables with another value at a key path, or without it where that is None, and without empty ones."""
    *above, name = path
    table = _at(node, tuple(above))
    if value is None:
        del table[name]
    else:
        table[name] = value
    return _filled(node)


def added(text: str, table: tuple[str, ...], name: str, spelt: str) -> str:
    """The text with a key in a table, which is made where there is none. It does not have the key.

    It goes where the table is: below its header, beside its dotted keys, or into the inline table.
    """
    found = statements(text)
    headers = [at for at, statement in enumerate(found) if statement.is_header and statement.path == table]
    if headers:
        at = headers[0]
        while at + 1 < len(found) and not found[at + 1].is_header:
            at += 1
        return _below(text, found[at], f"{toml_key(name)} = {spelt}")
    keys = [statement for statement in found if not statement.is_header]
    for statement in reversed(keys):
        if statement.path[: len(table)] == table and len(statement.path) > len(table):
            key = ".".join(toml_key(str(part)) for part in (*table[len(statement.table) :], name))
            return _below(text, statement, f"{key} = {spelt}")
    for statement in keys:
        if statement.path and statement.path == table[: len(statement.path)]:
            return _into_inline(text, statement.path, table, name, spelt)
    return _new_table(text, found, table, f"{toml_key(name)} = {spelt}")


def removed(text: str, path: KeyPath) -> str:
    """The text without a key that it sets, and without its table's header where that has nothing else."""
    statement = _setting(text, path)
    assert statement is not None
    if statement.path != path:
        wanted = _with(tomllib.loads(statement.text), _within(statement, path), None)
        pair = rf"{KEY}[ \t]*=[ \t]*{re.escape(written(text, path) or '')}"
        forms = (rf"[ \t]*,[ \t]*{pair}", rf"{pair}[ \t]*,[ \t]*", pair)
        spans = (match.span() for form in forms for match in re.finditer(form, statement.text))
        return _first(text, statement, path, spans, "", wanted)
    header = _only_for(text, statement)
    if header is None:
        return text[: statement.begin] + text[statement.end :]
    before, after = lines(text[: header.begin]), lines(text[statement.end :])
    while after and not after[0].strip():
        after.pop(0)
    while not after and before and not before[-1].strip():
        before.pop()
    return "".join([*before, *after])


def taken_back(text: str, path: KeyPath, inserted: str) -> str:
    """The text without a key that `added` put in, as it was before where nothing was put beside it."""
    plain = removed(text, path)
    if text.count(inserted) == 1:
        exact = text.replace(inserted, "")
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if _filled(tomllib.loads(exact)) == _filled(tomllib.loads(plain)):
                return exact
    return plain


def _filled(node: Any) -> Any:  # noqa: ANN401 - whatever TOML may hold
    """The same tables without the empty ones."""
    if isinstance(node, list):
        return [_filled(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    filled = {key: _filled(value) for key, value in node.items()}
    return {key: value for key, value in filled.items() if value != {}}


def _only_for(text: str, statement: Statement) -> Statement | None:
    """The header of a table that has this statement alone, and no comment; None where there is more."""
    found = statements(text)
    header = next((one for one in found if one.is_header and one.path == statement.path[:-1]), None)
    if header is None or [one for one in found if one.table == statement.table] != [header, statement]:
        return None
    inside = header.text.partition("]")[2].strip() + text[header.end : statement.begin]
    below = lines(text[statement.end :])[:1]
    touched = below and below[0].strip() and not below[0].lstrip().startswith("[")
    return None if inside.strip() or touched else header


def _setting(text: str, path: KeyPath) -> Statement | None:
    """The statement that has the value at a key path."""
    return next((one for one in statements(text) if path in one.values), None)


def _within(statement: Statement, path: KeyPath) -> KeyPath:
    return path[len(statement.table) :]


def _at(node: Any, path: KeyPath) -> Any:  # noqa: ANN401 - whatever TOML may hold
    for key in path:
        node = node[key]
    return node


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _below(text: str, statement: Statement, line: str) -> str:
    """A line of its own after a statement, indented as it is."""
    indent = statement.text[: len(statement.text) - len(statement.text.lstrip(_BLANK))]
    end, is_closed = _line_end(text), statement.text.endswith("\n")
    whole = f"{indent}{line}{end}" if is_closed else f"{end}{indent}{line}"
    return text[: statement.end] + whole + text[statement.end :]


def _into_inline(text: str, place: KeyPath, table: tuple[str, ...], name: str, spelt: str) -> str:
    """A key in an inline table, which is the value at `place` or lies in it."""
    missing = list(table[len(place) :])
    while missing and written(text, (*place, missing[0])) is not None:
        place = (*place, missing.pop(0))
    inline = written(text, place)
    assert inline is not None
    body = inline[:-1].rstrip(_BLANK)
    room = inline[len(body) : -1]
    gap, room = (" ", room or " ") if body == "{" else (", ", room)
    key = ".".join(toml_key(part) for part in (*missing, name))
    return replaced(text, place, f"{body}{gap}{key} = {spelt}{room}}}")


def _new_table(text: str, found: tuple[Statement, ...], table: tuple[str, ...], line: str) -> str:
    """A header with one key: before the first table of the same role, else at the end."""
    end = _line_end(text)
    made = f"[{'.'.join(toml_key(part) for part in table)}]{end}{line}"
    beside = [at for at, one in enumerate(found) if one.is_header and one.path[:1] == table[:1]]
    if not beside:
        finished = text.endswith("\n") or not text
        return f"{text}{'' if finished else end}{end if text.strip() else ''}{made}{end if finished else ''}"
    # Comments that touch a header are about it.
    begin = found[beside[0]].begin
    floor = found[beside[0] - 1].end if beside[0] else 0
    above = lines(text[floor:begin])
    while above and above[-1].strip():
        begin -= len(above.pop())
    before = text[:begin]
    gap = end if before.strip() and not before.endswith((f"{end}{end}", f"\n{end}")) else ""
    return f"{before}{gap}{made}{end}{end}{text[begin:]}"
