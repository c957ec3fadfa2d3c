"""An environment value of one role written into the profile's own file, with everything else kept byte for byte."""

import contextlib
import difflib
import math
import os
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4ctl.errors import OperationFailed, Refused, UsageError
from dsv4ctl.profile.checks import worker_path
from dsv4ctl.profile.editing import added, removed, replaced, taken_back, written
from dsv4ctl.profile.keys import KeyPath, dotted
from dsv4ctl.profile.loading import LoadedProfile, env_text, load_found
from dsv4ctl.profile.lookup import Found, builtin_dir, user_dir
from dsv4ctl.profile.schema import NamedWorker, Role
from dsv4ctl.profile.sources import prune
from dsv4ctl.profile.statements import lines

_BOM = "\ufeff"


@dataclass(frozen=True)
class Change:
    """One value that is otherwise: its key path, and how it is spelt in TOML before and after, None where it is not
    set. `inserted` is all that was put in for a key that was not there."""

    key: KeyPath
    before: str | None
    after: str | None
    inserted: str = ""


@dataclass(frozen=True)
class Rewrite:
    """A file as it is and as it is to be. `target` is the file itself, `path` a link to it or the same."""

    path: Path
    target: Path
    before_text: str
    after_text: str
    changes: tuple[Change, ...]

    @property
    def where(self) -> str:
        """The file for a person, with where its link leads."""
        return f"{self.path} (a link to {self.target})" if self.path.is_symlink() else str(self.path)

    @property
    def diff(self) -> tuple[str, ...]:
        """The changed lines as a unified diff; empty where nothing is changed."""
        before, after = (_shown_lines(text) for text in (self.before_text, self.after_text))
        return tuple(difflib.unified_diff(before, after, str(self.path), str(self.path), n=1, lineterm=""))


def set_value(
    found: Found, name: str, value: float | None, *, role: Role, cwd: Path, sets: Sequence[str] = ()
) -> Rewrite:
    """What the profile's file has to hold for every worker of `role` to have that value of an environment variable.

    It is changed where this file decides it: in the workers' own tables, in the role's, or in `[env]`; where none of
    them has it, it is put into the role's. None takes it out again, and a table that has nothing else.

    Nothing is written. `sets` lie on top of the file, as they do where the stack was started with them.

    Raises:
        UsageError, ProfileError: the profile is wrong, or has no such role.
        Refused: the profile is built in, or something other than this file decides the value.
    """
    spelt = None if value is None else spelling(value)
    source = _Source.read(found)
    loaded = load_found(found, cwd=cwd, sets=sets, text=source.text)
    workers = _workers(loaded, role)
    if found.path.resolve().is_relative_to(builtin_dir().resolve()):
        raise _built_in(loaded, name, spelt, role, cwd)
    changes: list[Change] = []
    text = source.text
    for key in _places(loaded, text, name, workers):
        before = written(text, key)
        is_so = before == spelt or (before is not None and spelt is not None and _env_text(before) == _env_text(spelt))
        if not is_so:
            text, change = _changed(text, key, before, spelt)
            changes.append(change)
    _verify(loaded, load_found(found, cwd=cwd, sets=sets, text=text), name, role, spelt, changes)
    return source.rewrite(text, changes)


def put_back(found: Found, changes: Sequence[Change], *, cwd: Path) -> Rewrite:
    """The file with these changes taken back, and what was done to it since kept. Nothing is written.

    Raises:
        UsageError, ProfileError: the profile is wrong.
        Refused: a value is not what it was changed to.
    """
    source = _Source.read(found)
    loaded = load_found(found, cwd=cwd, text=source.text)
    text = source.text
    back: list[Change] = []
    for change in reversed(changes):
        now = written(text, change.key)
        if now != change.after:
            raise Refused(
                f"{found.shown}: {dotted(change.key)} is {now or 'not set'}, and not {change.after or 'out'}",
                why="it was changed since",
                hint="set it to what you want in the file",
            )
        if change.before is None and change.inserted:
            text = taken_back(text, change.key, change.inserted)
            back.append(Change(change.key, change.after, None))
        else:
            text, made = _changed(text, change.key, now, change.before)
            back.append(made)
    _verify_rest(loaded, load_found(found, cwd=cwd, text=text), back)
    return source.rewrite(text, back)


def write(rewrite: Rewrite) -> None:
    """Replace the file, in one step, if it still holds `before_text`. Its mode and owner stay as they are.

    Raises:
        Refused: it holds something else by now.
        OperationFailed: it cannot be written; then it is as it was.
    """
    target = rewrite.target
    try:
        state = target.stat()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(rewrite.after_text.encode())
                file.flush()
                if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, state.st_uid, state.st_gid)
                os.fchmod(handle, state.st_mode & 0o7777)
                os.fsync(handle)
            _compare(rewrite)
            Path(temporary).replace(target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
        _sync(target.parent)
    except OSError as error:
        raise OperationFailed(f"cannot write {rewrite.where}", why=error.strerror) from error


def _compare(rewrite: Rewrite) -> None:
    """The last thing before the file is replaced: what somebody writes in the instant after it is lost."""
    if rewrite.target.read_bytes() != rewrite.before_text.encode():
        raise Refused(f"{rewrite.where} is not written: it was changed meanwhile", hint="look at it, and try again")


def spelling(value: float) -> str:
    """A number as a profile's `env` takes it: `15`, and `"2.5"`, which needs quotes there.

    Raises:
        UsageError: it is none that a profile can hold.
    """
    if not math.isfinite(value):
        raise UsageError(f"{value} is no number that a profile can hold")
    return str(int(value)) if value == int(value) else f'"{value}"'


@dataclass(frozen=True)
class _Source:
    """A file's text, its byte order mark apart."""

    found: Found
    mark: str
    text: str

    @staticmethod
    def read(found: Found) -> "_Source":
        try:
            text = found.path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{found.shown}: a profile is UTF-8 text, and byte {error.start} is not") from error
        except OSError as error:
            raise UsageError(f"{found.shown}: cannot read the profile: {error.strerror}") from error
        mark = _BOM if text.startswith(_BOM) else ""
        return _Source(found, mark, text.removeprefix(_BOM))

    def rewrite(self, text: str, changes: Sequence[Change]) -> Rewrite:
        path = self.found.path
        return Rewrite(path, path.resolve(), self.mark + self.text, self.mark + text, tuple(changes))


def _workers(loaded: LoadedProfile, role: Role) -> list[NamedWorker]:
    workers = [worker for worker in loaded.profile.workers if worker.role is role]
    if not workers:
        raise UsageError(f"{loaded.found.shown}: profile {loaded.profile.name} has no {role} worker")
    return workers


def _places(loaded: LoadedProfile, text: str, name: str, workers: Sequence[NamedWorker]) -> list[KeyPath]:
    """The key paths in this file, set or to be set, that decide the value of these workers."""
    places: list[KeyPath] = []
    for worker in workers:
        own: KeyPath = (*worker_path(worker), "env", name)
        of_role: KeyPath = (worker.role.value, "env", name)
        of_all: KeyPath = ("env", name)
        if name in worker.spec.env:
            # Of another file's workers none can be changed here without all of them.
            places += [own] if written(text, own) is not None else []
        elif name in loaded.profile.roles[worker.role].env or written(text, of_all) is None:
            places.append(of_role)
        else:
            places.append(of_all)
    return list(dict.fromkeys(places))


def _changed(text: str, key: KeyPath, before: str | None, after: str | None) -> tuple[str, Change]:
    """The text with one value spelt otherwise, put in or taken out, and nothing else.

    Raises:
        Refused: that cannot be done, or belongs into a worker's table that is not there.
    """
    *table, name = key
    if after is None:
        return removed(text, key), Change(key, before, None)
    if before is not None:
        return replaced(text, key, after), Change(key, before, after)
    if not all(isinstance(part, str) for part in table):
        raise Refused(f"{dotted(key)} = {after} cannot be put in: its table is gone", hint="write it in by hand")
    changed = added(text, tuple(map(str, table)), str(name), after)
    begin = next((at for at, (a, b) in enumerate(zip(text, changed, strict=False)) if a != b), len(text))
    return changed, Change(key, None, after, changed[begin : begin + len(changed) - len(text)])


def _verify(
    before: LoadedProfile, after: LoadedProfile, name: str, role: Role, spelt: str | None, changes: Sequence[Change]
) -> None:
    """Raises:
    Refused: a worker of the role would have another value, or something else would be otherwise.
    """
    for worker in _workers(after, role):
        given = after.worker_env(worker).get(name)
        if spelt is None or (given is not None and given.value == _env_text(spelt)):
            continue
        if given is None:
            raise Refused(f"{worker.name} would still not have {name}", why="--unset takes it out again")
        raise Refused(
            f"{worker.name} would still have {name} = {given.value}",
            why=f"{given.origin} decides it, and not {after.found.shown}",
            hint="change it there",
        )
    _verify_rest(before, after, changes)


def _verify_rest(before: LoadedProfile, after: LoadedProfile, changes: Sequence[Change]) -> None:
    """Raises:
    Refused: the profile would be otherwise in more than these values.
    """
    old, new = before.profile.model_dump(), after.profile.model_dump()
    for change in changes:
        old, new = _less(old, change.key), _less(new, change.key)
    if old != new:
        keys = ", ".join(dotted(change.key) for change in changes)
        raise Refused(f"{after.found.shown}: more than {keys} would be otherwise", hint="change it by hand")


def _less(data: Any, key: KeyPath) -> Any:  # noqa: ANN401 - whatever a profile may hold
    *table, name = key
    node = data
    for part in table:
        node = node[part]
    return prune(data, key) if name in node else data


def _env_text(spelt: str) -> str:
    return env_text(tomllib.loads(f"value = {spelt}")["value"])


def _built_in(loaded: LoadedProfile, name: str, spelt: str | None, role: Role, cwd: Path) -> Refused:
    """The refusal to write into the package, with a profile of the person's own that does the same.

    Raises:
        Refused: no such profile does it.
    """
    found = loaded.found
    base = found.path.resolve().stem
    if spelt is None:
        return Refused(f"{found.shown} is built in, and is not written")
    key = (role.value, "env", name)
    text = added(f'extends = "{base}"\n', key[:-1], name, spelt)
    own = Found(user_dir() / f"{base}.toml", f"the profile that extends {base}", found.chosen_by)
    _verify(loaded, load_found(own, cwd=cwd, text=text), name, role, spelt, [Change(key, None, spelt)])
    return Refused(
        f"{found.shown} is built in, and is not written",
        why="the next version of dsv4ctl would put its own in that place",
        hint=f"{own.path} is used in its place if it holds:\n\n{text}",
    )


def _shown_lines(text: str) -> list[str]:
    return [line.rstrip("\r\n") for line in lines(text)]


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
