"""What a function or class of the engine is, as twelve digits: the same while its code is, another once that changes.

Comments, docstrings and layout do not count, and neither does the Python that parses it: empty fields, which come and
go between its versions, are left out.
"""

import ast
import hashlib

from serving.patches import source

_LENGTH = 12


def fingerprint(module: str, qualname: str) -> str:
    """The first 12 hexadecimal digits of a SHA-256 of what `qualname` is in `module`.

    A name that is defined several times in one place counts with all of them.

    Raises:
        source.Missing: the installed engine has no such module, or defines nothing of that name there.
        source.Unreadable: its file is no Python that this interpreter can read.
    """
    text = "\n".join(_shape(definition) for definition in source.definitions(module, qualname))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _shape(value: object) -> str:
    """The same text for the same code."""
    if isinstance(value, ast.AST):
        fields = ((name, getattr(value, name, None)) for name in value._fields)
        if isinstance(value, source.Definition):
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
