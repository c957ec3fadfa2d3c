"""What `--set KEY=VALUE` and `--unset KEY` mean. They are the last layer: nothing in a profile beats them.

KEY is an environment name (`SGLANG_X=1`, for every engine worker), or either of `env.NAME` and `args.FLAG`, all three
optionally for one target only (`prefill.SGLANG_X`, `decode-1.args.tp`, `router.args.policy`); else the key path of any
other value of the profile (`router.port`, `prefill.workers[0].port`). `--unset` takes a variable or a flag out.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.keys import KeyPath, Origin
from dsv4ctl.profile.schema import ROUTER, ArgScalar, NamedWorker
from dsv4ctl.profile.sources import Document, freeze

SOURCE = "--set"

_TARGET = r"(?:(?P<target>router|(?:prefill|decode|unified)(?:-\d+)?)\.)?"
_ENV = re.compile(_TARGET + r"(?:env\.(?P<named>[A-Za-z_][A-Za-z0-9_]*)|(?P<bare>[A-Z_][A-Z0-9_]*))")
_ARG = re.compile(_TARGET + r"args\.(?P<flag>[a-z0-9][A-Za-z0-9._-]*)")
_KEY_PATH = re.compile(r"[A-Za-z0-9_-]+(?:\[\d+\])?(?:\.[A-Za-z0-9_-]+(?:\[\d+\])?)*")
_TAKEN_OUT = "-"
_PART = re.compile(r"([A-Za-z0-9_-]+)|\[(\d+)\]")


@dataclass(frozen=True)
class Override:
    """An environment variable or a flag set on the command line, or taken out where `value` is None. `target` is None
    for every engine worker, else a role, a worker's name, or `router`."""

    target: str | None
    table: Literal["env", "args"]
    name: str
    value: ArgScalar | None
    origin: Origin

    def applies_to(self, worker: NamedWorker) -> bool:
        """Whether this is for that engine worker."""
        return self.target in (None, worker.role.value, worker.name)

    @property
    def for_router(self) -> bool:
        """Whether this is for the router."""
        return self.target == ROUTER


@dataclass(frozen=True)
class Patch:
    """Any other value of the profile, by its key path."""

    path: KeyPath
    value: Any
    origin: Origin


def parse_sets(texts: Iterable[str]) -> tuple[tuple[Override, ...], tuple[Patch, ...]]:
    """The `KEY=VALUE` texts of a command line, and `-KEY` for what is taken out; a later one wins over an earlier one.

    Raises:
        UsageError: a text has no `=`, or its key is none of the forms above.
    """
    overrides: list[Override] = []
    patches: list[Patch] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and key.startswith(_TAKEN_OUT):
            overrides.append(_taken_out(key.removeprefix(_TAKEN_OUT)))
            continue
        if not equals:
            raise UsageError(f"--set {text}: must be KEY=VALUE", hint="e.g. --set SGLANG_LOG_MS=1")
        origin = Origin(SOURCE, key)
        if match := _ENV.fullmatch(key):
            name = match["named"] or match["bare"]
            overrides.append(Override(match["target"], "env", name, value, origin))
        elif match := _ARG.fullmatch(key):
            overrides.append(Override(match["target"], "args", match["flag"], _toml_value(value), origin))
        elif _KEY_PATH.fullmatch(key):
            path = tuple(int(index) if index else name for name, index in _PART.findall(key))
            patches.append(Patch(path, _toml_value(value), origin))
        else:
            raise UsageError(
                f"--set {key}=...: the key is neither an environment name nor a key of a profile",
                hint="e.g. --set SGLANG_LOG_MS=1, --set prefill.args.tp=2, --set router.port=31000",
            )
    return tuple(overrides), tuple(patches)


def is_override(key: str) -> bool:
    """Whether a key names an environment variable or a flag, and not another value of the profile."""
    return bool(_ENV.fullmatch(key) or _ARG.fullmatch(key))


def taken_out(key: str) -> str:
    """The text for `parse_sets` that takes `key` out."""
    return f"{_TAKEN_OUT}{key}"


def _taken_out(key: str) -> Override:
    origin = Origin("--unset", key)
    if match := _ENV.fullmatch(key):
        return Override(match["target"], "env", match["named"] or match["bare"], None, origin)
    if match := _ARG.fullmatch(key):
        return Override(match["target"], "args", match["flag"], None, origin)
    raise UsageError(
        f"--unset {key}: only an environment variable or a flag can be taken out",
        hint="e.g. --unset SGLANG_LOG_MS, --unset decode.args.page-size",
    )


def _toml_value(text: str) -> Any:  # noqa: ANN401 - whatever TOML may hold
    """The value as TOML would read it; what TOML would not read is a string as it stands."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return freeze(parsed["value"]) if parsed.keys() == {"value"} else text


def apply_patches(document: Document, patches: Iterable[Patch]) -> Document:
    """The document with every patch in place. A key nobody knows is put in too: the schema will name it.

    Raises:
        UsageError: a patch goes through a value that is no table, or names an element that a list does not have.
    """
    data, origins = document.data, dict(document.origins)
    for patch in patches:
        data = _set(data, patch.path, patch)
        origins[patch.path] = patch.origin
    return Document(data, origins, document.file)


def _set(node: Any, rest: KeyPath, patch: Patch) -> Any:  # noqa: ANN401 - whatever TOML may hold
    if not rest:
        return patch.value
    key = rest[0]
    if isinstance(key, int):
        if not isinstance(node, tuple) or key >= len(node):
            raise UsageError(f"--set {patch.origin.key}: the profile has no element [{key}] there")
        return (*node[:key], _set(node[key], rest[1:], patch), *node[key + 1 :])
    if not isinstance(node, Mapping):
        raise UsageError(f"--set {patch.origin.key}: there is no table to put {key} in")
    return {**node, key: _set(node.get(key, {}), rest[1:], patch)}
