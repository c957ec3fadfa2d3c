"""A patch records what it builds on: every function of the engine that its own functions call, and that it hooks.

What is recorded has a fingerprint, and an engine in which it has changed is found out before it serves. Names are
compared, since nothing says of which class a value of the engine is; one that means something else is listed below.
"""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import serving
from serving.patches import registry, source
from serving.patches.patch import Patch

PATCHES = {patch.name: patch for patch in registry.discover()}
OURS = Path(serving.__file__).parent

# Of Python's own values, and of its files, pollers, executors and modules; of prometheus_client.
NOT_THE_ENGINES = frozenset(name for kind in (dict, list, str, bytes, set) for name in dir(kind)).union(
    ("cancel", "fileno", "labels", "match", "observe", "parse", "read", "recv", "register", "set", "submit", "write")
)
# It knows sockets alone.
WITHOUT_ENGINE = "serving.peers.line"

Place = tuple[str, str]
"""A module, and a name at its top."""


@functools.cache
def tree(module: str) -> ast.Module:
    """Of a module of ours; an empty one for any other."""
    path = OURS.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text()) if OURS in file.parents and file.is_file() else ast.Module([], [])


@functools.cache
def tops(module: str) -> Mapping[str, ast.stmt]:
    """The functions, classes and variables of a module of ours."""
    found: dict[str, ast.stmt] = {}
    for node in tree(module).body:
        if isinstance(node, source.Definition):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def imported(module: str) -> Mapping[str, str]:
    """What a module of ours imports from others of ours, anywhere in it: the whole name by the one it has there."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("serving")
        for alias in node.names
    }


def led_to(module: str, node: ast.AST) -> Iterator[Place]:
    """Which of our functions and classes this function or class of `module` names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            whole = imported(module).get(part.id, f"{module}.{part.id}")
            yield whole.rpartition(".")[0], whole.rpartition(".")[2]
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            yield imported(module).get(part.value.id, ""), part.attr


def reached(patch: Patch) -> list[ast.AST]:
    """All of the functions of a patch and of what they call among ours, of a class the methods that are named."""
    seen: set[Place] = set()
    left: list[tuple[str, ast.AST]] = []
    methods: list[tuple[str, source.Definition]] = []
    nodes: list[ast.AST] = []

    def visit(module: str, name: str) -> None:
        if (module, name) not in seen and module != WITHOUT_ENGINE and name in tops(module):
            seen.add((module, name))
            left.append((module, tops(module)[name]))

    for hook in patch.hooks:
        visit(*hook.function.split(":"))
    while left:
        module, node = left.pop()
        if isinstance(node, ast.ClassDef):
            methods += [(module, part) for part in node.body if isinstance(part, source.Definition)]
            left += [(module, part) for part in node.body if not isinstance(part, source.Definition)]
            left += [(module, base) for base in node.bases]
        else:
            nodes += ast.walk(node)
            for place in led_to(module, node):
                visit(*place)
        if not left:
            named = {part.attr for part in nodes if isinstance(part, ast.Attribute)} | {"__init__"}
            left = [(module, method) for module, method in methods if method.name in named]
            methods = [(module, method) for module, method in methods if method.name not in named]
    return nodes


def called(patch: Patch) -> set[str]:
    """Names that the functions of a patch call on a value or import from the engine, and that are not ours."""
    nodes = reached(patch)
    defining = [*nodes, *ast.walk(tree(WITHOUT_ENGINE))]
    ours = {part.name for part in defining if isinstance(part, source.Definition)}
    ours |= {part.attr for part in nodes if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)}
    calls = {part.func.attr for part in nodes if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)}
    imports = [part for part in nodes if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("sglang")]
    return (calls | {alias.name for node in imports for alias in node.names}) - ours - NOT_THE_ENGINES


@functools.cache
def engine() -> Mapping[str, set[str]]:
    """`module:qualname` of each function and class, by name, in the modules of which any patch records something."""
    found: dict[str, set[str]] = defaultdict(set)

    def note(node: ast.AST, before: str) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, source.Definition):
                found[part.name].add(before + part.name)
                note(part, f"{before}{part.name}.")
            else:
                note(part, before)

    for module in {upstream.module for patch in PATCHES.values() for upstream in patch.upstream}:
        note(source._tree(module), f"{module}:")
    source.forget()
    return found


def recorded(patch: Patch) -> set[str]:
    """By the patch and by those that it is never applied without."""
    own = {f"{upstream.module}:{upstream.qualname}" for upstream in patch.upstream}
    return own.union(*(recorded(PATCHES[name]) for name in patch.relies_on))


@pytest.mark.parametrize("name", PATCHES)
def test_what_a_patch_calls_is_recorded(name: str) -> None:
    known = recorded(PATCHES[name])

    def is_recorded(function: str) -> bool:
        """Itself, the class that it is in, or something in it where it is a class."""
        return any(f"{function}.".startswith(f"{one}.") or one.startswith(f"{function}.") for one in known)

    missing = {
        called_name: sorted(engine()[called_name])
        for called_name in called(PATCHES[name]) & engine().keys()
        if not any(map(is_recorded, engine()[called_name]))
    }
    assert missing == {}


@pytest.mark.parametrize("name", PATCHES)
def test_what_a_patch_hooks_is_recorded(name: str) -> None:
    known = {function.replace(":", ".") for function in recorded(PATCHES[name])}
    inherited = {function.rpartition(".")[2] for function in known}
    assert [hook.target for hook in PATCHES[name].hooks if hook.target.rpartition(".")[2] not in inherited] == []


def test_the_functions_that_once_were_not_recorded_are_seen() -> None:
    assert "conclude_failure" in called(PATCHES["decode-is-told"])
    assert "conclude_failure" in called(PATCHES["pipeline-failure"])
    assert "is_abort_release_safe" in called(PATCHES["pipeline-failure"])
