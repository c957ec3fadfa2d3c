"""Every name that can be set on this version of the stack: environment variables and flags, as data.

The engine ignores a misspelt environment variable, and replaces a bad value by its default with a warning; a wrong
flag shows only after a minute of imports. So this reads what the installed engine knows, without importing it: the
registry module alone needs nothing but the standard library, and the rest is read from the source.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving import limits
from serving.knob_flags import EngineNotInstalled, FlagKnob, engine_flags, read_tree, router_flags
from serving.settings import switch

SCHEMA_VERSION = 1

_LITERAL = re.compile(r"""(["'])(SGL(?:ANG)?_[A-Z0-9_]*[A-Z0-9])\1""")
_OWN_PACKAGE = Path(__file__).parent
# They name what others read.
_TABLES = (Path(__file__), _OWN_PACKAGE / "hazards.py")
# Neither runs in a server of text: the engine's own tests, and the diffusion engine beside it.
_NOT_SERVING = ("sglang/test/", "sglang/multimodal_gen/")


@dataclass(frozen=True)
class EnvKnob:
    """An environment variable. `type` is bool, int, float, str, tuple or json; null where only the name is known.

    `default` is its text, null when unset or worked out at run time. `origin` is `registry` (the engine's typed table),
    `source` (a whole string literal somewhere in the engine) or `dsv4` (ours). `deprecated` says what the engine says
    of it. `is_read` is false for one of ours that this version does not read.
    """

    type: str | None
    default: str | None
    origin: str
    meaning: str | None = None
    deprecated: str | None = None
    is_read: bool = True


@dataclass(frozen=True)
class OwnKnob:
    """One of ours: its type, its default as text, and what it does in one line."""

    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class EngineSwitch:
    """What the engine makes of one of its switches. `said` is what the environment says, None for nothing.

    For nothing, and for what it does not understand, the engine takes the default.
    """

    is_on: bool
    said: str | None
    is_understood: bool


# None of these is the engine's own, as SGLANG_DSV4_REASONING_EFFORT and SGLANG_DEFAULT_THINKING are.
OWN_KNOBS = {
    "SGLANG_DSV4_PATCH_POLICY": OwnKnob(
        "str", "enforce", "a required patch that FAILED: enforce = it stops the engine, warn = it is said"
    ),
    "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": OwnKnob(
        "float", "120", "seconds a request may sit in prefill's inflight queue before it is failed; 0 = no limit"
    ),
    "SGLANG_DSV4_LOST_DECODE_GRACE": OwnKnob(
        "float", "10", "seconds a request may wait in prefill for a decode worker while every known one is gone"
    ),
    "SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT": OwnKnob(
        "float", "120", "seconds a request may wait for a scheduler that does not move; 0 = no limit"
    ),
    "SGLANG_DSV4_DISABLE_PATCHES": OwnKnob("str", "", "names of patches to leave out, with commas between; or all"),
    "SGLANG_DSV4_ALLOW_HOLD": OwnKnob("bool", "0", "a request may ask to be pinned in prefill, to prove the watchdog"),
    "SGLANG_DSV4_BF16_INDEX_K": OwnKnob("bool", "0", "keep the indexer's keys in BF16 in place of FP8"),
    "SGLANG_DSV4_IDXK_CKSUM": OwnKnob("bool", "0", "compare a checksum of every page of index keys after its transfer"),
    "SGLANG_SM120_MMA_FLASHMLA": OwnKnob("bool", "0", "sparse MLA decode on tensor cores (SM120)"),
    "SGLANG_SM120_MMA_TARGET_CTAS": OwnKnob("int", "0", "programs the sparse MLA decode aims for; 0 = it chooses"),
    "SGLANG_SM120_TRITON_INDEXER": OwnKnob("bool", "0", "indexer logits in Triton in place of torch (SM120)"),
}


def dump() -> dict[str, Any]:
    """All of it, ready for JSON. Names are sorted, so that two dumps can be compared.

    Raises:
        EngineNotInstalled: as its class says.
    """
    engine, router = _package("sglang"), _package("sglang_router")
    env = {name: EnvKnob(None, None, "source") for name in _literals(engine, router)}
    env |= _registry(_environ_module())
    own_reads = names_read_by_us()
    env |= {
        name: EnvKnob(own.type, own.default, "dsv4", own.meaning, None, name in own_reads)
        for name, own in OWN_KNOBS.items()
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "sglang": importlib.metadata.version("sglang"),
        "sglang_router": importlib.metadata.version("sglang-router"),
        "env": _plain(env),
        "engine_flags": _plain(engine_flags(engine)),
        "router_flags": _plain(router_flags(router)),
    }


def names_read_by_us() -> set[str]:
    """Every SGLANG_* name in our half of the stack but for its tables: ours, and the engine's that we read or set."""
    return _literals(_OWN_PACKAGE)


def check_ours(environment: Mapping[str, str]) -> None:
    """See that what the environment says of our switches and limits can be understood.

    Raises:
        BadSetting: for the first that cannot.
    """
    for name, own in OWN_KNOBS.items():
        if own.type == "bool":
            switch(name, environment)
        elif name in limits.LIMITS:
            limits.said(name, environment)


@functools.cache
def engine_default(name: str) -> str | None:
    """The default of a variable in the engine's typed table, as text; None when it has none, or is not in it.

    Raises:
        EngineNotInstalled: as its class says.
    """
    return _engine_table().get(name, EnvKnob(None, None, "registry")).default


@functools.cache
def _engine_table() -> Mapping[str, EnvKnob]:
    return _registry(_environ_module())


def engine_switch(name: str, environment: Mapping[str, str]) -> EngineSwitch:
    """A switch of the engine's typed table, read by the engine's own parser. One that is not in the table is off.

    Raises:
        EngineNotInstalled: as its class says.
    """
    module = _environ_module()
    entry = vars(module.Envs).get(name)
    if not isinstance(entry, module.EnvBool):
        return EngineSwitch(is_on=False, said=None, is_understood=True)
    default = bool(entry.default() if callable(entry.default) else entry.default)
    said = environment.get(name, environment.get(getattr(entry, "deprecated_name", "")))
    if said is None:
        return EngineSwitch(default, said, is_understood=True)
    try:
        return EngineSwitch(bool(entry.parse(said)), said, is_understood=True)
    except ValueError:
        return EngineSwitch(default, said, is_understood=False)


@functools.cache
def _environ_module() -> Any:  # noqa: ANN401 - a module
    """The engine's own, if this process has it, or one made from its file alone: its package would import torch."""
    return sys.modules.get("sglang.srt.environ") or _by_its_file(_package("sglang") / "srt" / "environ.py")


def _plain(knobs: Mapping[str, EnvKnob | FlagKnob]) -> dict[str, dict[str, Any]]:
    """By name; what is not known is left out, which halves the text."""
    return {
        name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(knob).items()
            if value is not None
        }
        for name, knob in sorted(knobs.items())
    }


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise EngineNotInstalled(f"{sys.executable} has no package {name}")
    return Path(spec.submodule_search_locations[0])


def _registry(module: Any) -> dict[str, EnvKnob]:  # noqa: ANN401 - a module
    """The engine's typed table, from its module."""
    knobs: dict[str, EnvKnob] = {}
    for name, entry in vars(module.Envs).items():
        if not isinstance(entry, module.EnvField):
            continue
        default = None if callable(entry.default) or entry.default is None else _text(entry.default)
        kind = _type_of(entry, module)
        knobs[name] = EnvKnob(kind, default, "registry")
        if old := getattr(entry, "deprecated_name", None):
            knobs[old] = EnvKnob(kind, None, "registry", deprecated=f"use {name}")
    for name, entry in getattr(module, "_DEPRECATED_ENVS", {}).items():
        instead = f"use {entry.replacement}" if entry.replacement else None
        knobs[name] = EnvKnob(None, None, "registry", deprecated=instead or entry.note or "it does nothing any more")
    return knobs


def _by_its_file(path: Path) -> Any:  # noqa: ANN401 - a module
    """A module that needs the standard library alone; what older versions import of their package is left out."""
    if not path.is_file():
        raise EngineNotInstalled(f"{path} is not there")
    tree = read_tree(path)
    tree.body = [node for node in tree.body if not _imports_engine(node)]
    module = types.ModuleType("_dsv4_engine_environ")
    exec(compile(tree, str(path), "exec"), vars(module))  # noqa: S102 - the engine's own code
    return module


def _imports_engine(node: ast.stmt) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.partition(".")[0] == "sglang" for name in names)


def _type_of(entry: object, module: Any) -> str:  # noqa: ANN401 - a module loaded by its file
    kinds = {
        "bool": module.EnvBool,
        "int": module.EnvInt,
        "float": module.EnvFloat,
        "tuple": module.EnvTuple,
        "json": getattr(module, "EnvJSON", ()),
    }
    return next((kind for kind, known in kinds.items() if isinstance(entry, known)), "str")


def _text(value: object) -> str:
    """A default as one would write it in the environment."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    # A dump of one machine is compared with that of another, and nobody's home is in the bundled one.
    home = str(Path.home())
    return "~" + str(value).removeprefix(home) if str(value).startswith(home + "/") else str(value)


def _literals(*packages: Path) -> set[str]:
    """Every SGLANG_* and SGL_* name that stands alone in quotes, but for those of our tables.

    More than what is read, since a name may be read through a constant; a lint may miss, but must not cry wolf.
    A pattern over the text takes a tenth of the time that parsing 4,700 files does, and finds every name that does.
    """
    found: set[str] = set()
    for package in packages:
        for path in package.rglob("*.py"):
            if path not in _TABLES and not any(part in path.as_posix() for part in _NOT_SERVING):
                text = path.read_text(encoding="utf-8", errors="replace")
                found.update(match[2] for match in _LITERAL.finditer(text))
    return found


def lines(knobs: dict[str, Any]) -> Iterator[str]:
    """The same for a person: one name a line."""
    yield f"sglang {knobs['sglang']}, sglang-router {knobs['sglang_router']}"
    for name, knob in knobs["env"].items():
        note = f"deprecated: {knob['deprecated']}" if "deprecated" in knob else knob.get("meaning", "")
        yield f"{name}  {knob.get('type', '?')}  {knob.get('default', '')}  {note}".rstrip()
