"""What a function or class of the engine is, as twelve digits: the same while its code is, another once that changes.

Taken from the source, which is found without importing anything of the engine. Comments, docstrings and layout do not
count, and neither does the Python that parses it: empty fields, which come and go between its versions, are left out.
"""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

_LENGTH = 12
_LOCALS = "<locals>"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NotFound(LookupError):
    """The installed engine has no such module, or nothing of that name is defined in it."""


def fingerprint(module: str, qualname: str) -> str:
    """The first 12 hexadecimal digits of a SHA-256 of what `qualname` is in `module`.

    A name that is defined several times in one place (a property and its setter, two branches) counts with all of them.

    Raises:
        NotFound: as its class says.
    """
    definitions = list(_definitions(_parsed(module), qualname))
    if not definitions:
        raise NotFound(f"{module} defines no {qualname}")
    text = "\n".join(_shape(definition) for definition in definitions)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_source_of(module).read_bytes())


def _source_of(module: str) -> Path:
    """The file of a module; only the top package is looked up by Python, since it would import the packages below."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise NotFound(f"this interpreter has no {top}")
    if not below:
        return Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        place = Path(root, *below)
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                return path
    raise NotFound(f"{top} has no module {module}")


def _definitions(tree: ast.AST, qualname: str) -> Iterator[_Definition]:
    name, _, below = qualname.replace(f".{_LOCALS}.", ".").partition(".")
    for definition in _in_scope(tree):
        if definition.name == name:
            if below:
                yield from _definitions(definition, below)
            else:
                yield definition


def _in_scope(tree: ast.AST) -> Iterator[_Definition]:
    """What is defined directly in this module, class or function, also below an `if` or a `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _in_scope(node)


def _shape(value: object) -> str:
    """The same text for the same code."""
    if isinstance(value, ast.AST):
        fields = ((name, getattr(value, name, None)) for name in value._fields)
        if isinstance(value, _Definition):
            fields = ((name, _without_docstring(part) if name == "body" else part) for name, part in fields)
        kept = (f"{name}={_shape(part)}" for name, part in fields if part is not None and part != [])
        return f"{type(value).__name__}({','.join(kept)})"
    if isinstance(value, list):
        return f"[{','.join(map(_shape, value))}]"
    return repr(value)


def _without_docstring(body: object) -> object:
    assert isinstance(body, list)
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body
