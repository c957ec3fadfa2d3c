"""The engine's source, read without importing it: what is defined where.

Only the top package is looked up by Python: looking up a module below it would import all the packages above it.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NotFound(LookupError):
    """What was asked for cannot be had from the installed engine."""


class Missing(NotFound):
    """It has no such module, or nothing of that name is defined in it."""


class Unreadable(NotFound):
    """The file in which it should be is no Python that this interpreter can read."""


def definitions(module: str, qualname: str) -> list[Definition]:
    """What defines `qualname` in the text of `module`: several for a property and its setter, or for two branches.

    Raises:
        Missing, Unreadable: as their classes say.
    """
    found = list(_defined(_tree(module), qualname.replace(".<locals>.", ".")))
    if not found:
        raise Missing(f"{module} defines no {qualname}")
    return found


def module_of(path: str) -> str | None:
    """The module in which the rest of a dotted path is to be looked for: as much of the path as has a file."""
    parts = path.split(".")
    candidates = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((module for module in candidates if _file(module) is not None), None)


def leads_somewhere(path: str) -> bool:
    """Whether a dotted path, module and all, names something: in its module, by an import there, or in a base class.

    What a module makes while it runs is not seen.

    Raises:
        Unreadable: as its class says.
    """
    return _leads_somewhere(path, frozenset())


def forget() -> None:
    """Let go of what was parsed: tens of megabytes."""
    _tree.cache_clear()


@functools.cache
def _tree(module: str) -> ast.Module:
    path = _file(module)
    if path is None:
        raise Missing(f"this interpreter has no module {module}")
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read as Python: {error}") from error


def _file(module: str) -> Path | None:
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not below:
        return Path(spec.origin) if spec.has_location and spec.origin else None
    for root in spec.submodule_search_locations or ():
        place = Path(root, *below)
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                return path
    return None


def _scope(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements of this module, class or function itself, also those below an `if` or a `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, Definition | ast.expr):
            yield from _scope(node)


def _defined(tree: ast.AST, qualname: str) -> Iterator[Definition]:
    name, _, below = qualname.partition(".")
    for node in _scope(tree):
        if isinstance(node, Definition) and node.name == name:
            if below:
                yield from _defined(node, below)
            else:
                yield node


def _leads_somewhere(path: str, asked: frozenset[str]) -> bool:
    """`asked` are the paths that led here: two modules may import a name from each other that neither defines."""
    if path in asked:
        return False
    module = module_of(path)
    if module is None or module == path:
        return module == path
    return _binds(module, path.removeprefix(f"{module}.").split("."), asked | {path})


def _binds(module: str, names: Sequence[str], asked: frozenset[str]) -> bool:
    return any(_leads_on(module, node, names, asked) for node in _scope(_tree(module)))


def _leads_on(module: str, node: ast.stmt, names: Sequence[str], asked: frozenset[str]) -> bool:
    """Whether this statement of `module` gives a meaning to the first of `names`, and that to the others in turn."""
    name, *below = names
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        meant = {alias.name: name if alias.name == "*" else alias.name for alias in node.names}
        return any(
            _leads_somewhere(".".join((node.module or "", meant[alias.name], *below)), asked)
            for alias in node.names
            if name == (alias.asname or meant[alias.name])
        )
    if isinstance(node, ast.ClassDef) and node.name == name and below:
        return any(_leads_on(module, inner, below, asked) for inner in _scope(node)) or any(
            _binds(module, (*ast.unparse(base).partition("[")[0].split("."), *below), asked) for base in node.bases
        )
    if below:
        return False
    if isinstance(node, Definition):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
