"""A loaded profile as text and as data, with secrets redacted: what it says, and where each value comes from."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsv4ctl.profile.keys import KeyPath, Origin, Valued, dotted, toml_key
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.profile.schema import ROUTER, Profile
from dsv4ctl.redaction import redact, redact_argv, redact_text

_SETTINGS = frozenset({"env", "args"})


def to_toml(profile: Profile, *, reveal: bool = False) -> str:
    """The effective profile as TOML, `extends` resolved and defaults written out; loading it gives the same profile.

    Secrets are redacted unless `reveal`.
    """
    data = profile.model_dump(exclude_none=True)
    return "\n".join(_table(data if reveal else _redacted(data), ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...], header: str = "") -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_tables(value)}
    if header and (plain or not table):
        yield f"\n{header}"
    for key, value in plain.items():
        yield f"{toml_key(key)} = {_value(value)}"
    for key, value in table.items():
        here = (*path, key)
        name = ".".join(toml_key(part) for part in here)
        if _is_table(value) and value:
            yield from _table(value, here, f"[{name}]")
        elif _is_tables(value):
            for element in value:
                yield from _table(element, here, f"[[{name}]]")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON escapes all that TOML asks to escape, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _redacted(value: Any, path: KeyPath = ()) -> Any:  # noqa: ANN401 - whatever TOML may hold
    if isinstance(value, Mapping):
        return {key: _redacted(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, tuple):
        # Each word of a flag that takes several is one of its values.
        inside = path if "args" in path else None
        return tuple(_redacted(item, inside or (*path, index)) for index, item in enumerate(value))
    if not isinstance(value, str):
        return value
    table, key = (path[-2], str(path[-1])) if len(path) > 1 else ("", "")
    if table == "env":
        return redact(key, value)
    return redact_argv((f"--{key}", value))[1] if table == "args" else redact_text(value)


def rows(loaded: LoadedProfile) -> Iterator[tuple[str, str, Origin]]:
    """Every effective value as (key, value as text, origin): the profile's own keys, then each worker's settings.

    A worker's environment and flags are given as they are after all layers, e.g. `prefill-0 env UCX_TLS`.
    """
    yield from _leaves(loaded, _redacted(loaded.profile.model_dump(exclude_none=True)), ())
    for name, env, args in _settings(loaded):
        for key, valued in env.items():
            yield f"{name} env {key}", redact(key, valued.value), valued.origin
        for key, value in args.items():
            yield f"{name} args {key}", _value(_redacted(value.value, ("args", key))), value.origin


def _leaves(loaded: LoadedProfile, value: Any, path: KeyPath) -> Iterator[tuple[str, str, Origin]]:  # noqa: ANN401
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _SETTINGS:
                yield from _leaves(loaded, item, (*path, key))
    elif _is_tables(value):
        for index, item in enumerate(value):
            yield from _leaves(loaded, item, (*path, index))
    else:
        yield dotted(path), _value(value), loaded.origin(*path)


def _settings(loaded: LoadedProfile) -> Iterator[tuple[str, Mapping[str, Valued[str]], Mapping[str, Valued[Any]]]]:
    for worker in loaded.profile.workers:
        yield worker.name, loaded.worker_env(worker), loaded.worker_args(worker)
    if loaded.profile.router:
        yield ROUTER, loaded.router_env(), loaded.router_args()


def as_data(loaded: LoadedProfile) -> dict[str, Any]:
    """All of it for a program: the profile, where it was found, and every effective value with its origin."""
    return {
        "path": str(loaded.found.path),
        "chosen_by": loaded.found.chosen_by,
        "profile": _redacted(loaded.profile.model_dump()),
        "values": [
            {"key": key, "value": value, "origin": {"source": origin.source, "line": origin.line, "key": origin.key}}
            for key, value, origin in rows(loaded)
        ],
    }
