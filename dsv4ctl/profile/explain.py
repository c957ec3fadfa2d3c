"""From what pydantic says to one sentence a person can act on: the place, the key, and what would be right."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dsv4ctl.names import did_you_mean
from dsv4ctl.profile.keys import KeyPath, Problem, dotted
from dsv4ctl.profile.schema import Profile
from dsv4ctl.profile.sources import FILE_KEYS, Document
from dsv4ctl.redaction import redact, redact_text

_RIGHT = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a table",
    "mapping_type": "must be a table",
    "string_too_short": "must not be empty",
    "too_short": "must have at least one element",
    "finite_number": "must be a finite number",
}


def explain(error: ValidationError, document: Document) -> tuple[Problem, ...]:
    """Every error as a problem.

    An error that only follows from one further down (a list is "too short" because its elements are wrong) is left out.
    """
    details = error.errors(include_url=False)
    paths = [_path(detail) for detail in details]
    problems = [
        _problem(detail, path, document)
        for detail, path in zip(details, paths, strict=True)
        if not (
            detail["type"] == "too_short"
            and any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        )
    ]
    return tuple(dict.fromkeys(problems))


def _path(detail: ErrorDetails) -> KeyPath:
    # "[key]" is pydantic's mark for "the key itself is wrong"; the key is the part before it.
    return tuple(part for part in detail["loc"] if part != "[key]")


def _problem(detail: ErrorDetails, path: KeyPath, document: Document) -> Problem:
    kind = detail["type"]
    origin = document.nearest(path)
    if kind == "extra_forbidden":
        return Problem(origin, dotted(path), f"is not a key of a profile{_known_keys(path)}")
    if kind == "missing":
        return Problem(origin, dotted(path), f"is missing; {_missing(path)}")
    if "[key]" in detail["loc"]:
        return Problem(origin, dotted(path), detail["msg"])
    shown = _shown(detail["input"])
    shown = redact(str(path[-1]), shown) if "env" in path else redact_text(shown)
    return Problem(origin, dotted(path), f"{_what(detail)}, not {shown}")


def _what(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "profile_value":
        return detail["msg"]
    if kind == "literal_error":
        return f"must be {context['expected']}".replace("'", '"')
    if kind in ("greater_than_equal", "greater_than"):
        return f"must be {'at least' if 'ge' in context else 'more than'} {context.get('ge', context.get('gt')):g}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    return _RIGHT.get(kind, detail["msg"])


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    return str(value)


def _known_keys(path: KeyPath) -> str:
    model = model_at(path[:-1])
    if model is None:
        return ""
    names = list(model.model_fields) + (list(FILE_KEYS) if model is Profile else [])
    if guess := did_you_mean(str(path[-1]), names):
        return f'; did you mean "{guess}"?'
    return f"; known here: {', '.join(names)}"


def _missing(path: KeyPath) -> str:
    if model_at(path):
        return f"add a table [{dotted(path)}]"
    model = model_at(path[:-1])
    field = model.model_fields.get(str(path[-1])) if model else None
    kinds: dict[Any, str] = {int: "an integer", float: "a number", str: "a string"}
    annotation = field.annotation if field else None
    if get_origin(annotation) is Literal:
        return f"it must be {get_args(annotation)[0]}"
    return f"it must be {kinds.get(annotation, 'a list of tables')}"


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the table at `path` of a profile; None where there is none (as in `env`)."""
    annotation: Any = Profile
    for part in path:
        annotation = _inside(annotation, part)
    return next((option for option in _options(annotation) if _is_model(option)), None)


def _inside(annotation: Any, part: str | int) -> Any:  # noqa: ANN401 - a type form has no type of its own in 3.11
    """The type of element `part` of something of this type; None when it can have no such element."""
    for option in _options(annotation):
        if _is_model(option):
            field = option.model_fields.get(str(part))
            return field.annotation if field else None
        if get_origin(option) is Mapping:
            return get_args(option)[1]
        if get_origin(option) is tuple:
            return get_args(option)[0]
    return None


def _options(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_model(annotation: Any) -> bool:  # noqa: ANN401
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
