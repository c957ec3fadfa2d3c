"""The flags of the installed engine and its router, read from their source: importing either would take a minute."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBERS = frozenset({"int", "float"})


class EngineNotInstalled(RuntimeError):
    """This interpreter has no SGLang, or one whose source is laid out in a way we cannot read."""


@dataclass(frozen=True)
class FlagKnob:
    """A command line flag: `switch` takes no value, `value` one, `list` several.

    `type` is int or float, of each of them; null for text, and where the engine has a reader of its own. `choices` are
    all values that it takes; null where there are none, or they are worked out when the parser is made.
    """

    kind: str
    type: str | None = None
    choices: tuple[str, ...] | None = None


Constants = Mapping[str, tuple[Any, ...]]
"""Lists of choices by their names."""


def read_tree(path: Path) -> ast.Module:
    """A file of the engine.

    Raises:
        EngineNotInstalled: it is no Python.
    """
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise EngineNotInstalled(f"{path} cannot be read as Python: {error}") from error


def engine_flags(engine: Path) -> dict[str, FlagKnob]:
    """The server's flags, from the annotated fields that its parser is made of and from what is added by hand.

    Raises:
        EngineNotInstalled: its source is laid out otherwise.
    """
    arguments = engine / "srt" / "server_args.py"
    if not arguments.is_file():
        raise EngineNotInstalled(f"{arguments} is not there")
    groups = engine / "srt" / "arg_groups"
    lists = groups / "choices.py"
    trees = [read_tree(path) for path in (*sorted((groups / "fields").glob("*.py")), arguments)]
    constants = _constants([*([read_tree(lists)] if lists.is_file() else []), *trees])
    flags: dict[str, FlagKnob] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign):
                flags |= _field_flags(node, constants)
            elif isinstance(node, ast.Call):
                flags |= _added_flags(node, constants)
    return flags


def router_flags(router: Path) -> dict[str, FlagKnob]:
    """The router's flags.

    Raises:
        EngineNotInstalled: its source is laid out otherwise.
    """
    path = router / "router_args.py"
    if not path.is_file():
        raise EngineNotInstalled(f"{path} is not there")
    return {
        name: flag
        for node in ast.walk(read_tree(path))
        if isinstance(node, ast.Call)
        for name, flag in _added_flags(node, {}).items()
    }


def _field_flags(node: ast.AnnAssign, constants: Constants) -> dict[str, FlagKnob]:
    """Flags of `name: A[type, "help" or Arg(...)]`, as the engine's arg_utils derives them."""
    annotation = node.annotation
    if not (
        isinstance(node.target, ast.Name)
        and isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "A"
        and isinstance(annotation.slice, ast.Tuple)
    ):
        return {}
    declared, *metadata = annotation.slice.elts
    call = next((item for item in metadata if isinstance(item, ast.Call) and _called(item) == "Arg"), None)
    options = {item.arg: item.value for item in call.keywords if item.arg} if call else {}
    if _constant(options.get("no_cli")) is True:
        return {}
    name = _constant(options.get("cli_name")) or "--" + node.target.id.replace("_", "-")
    aliases = options.get("aliases")
    names = [name, *(_constant(item) for item in (aliases.elts if isinstance(aliases, ast.List) else []))]
    if "action" in options:
        return _by_action(names, options, constants)
    if "type_parser" in options:
        return _named(names, FlagKnob("list" if "nargs" in options else "value"))
    declared = _inside(declared, "Optional")
    element = _inside(declared, "List", "list")
    if "nargs" in options or element is not declared:
        return _named(names, _valued("list", element, options, constants))
    if ast.unparse(declared) == "bool":
        return _named(names, FlagKnob("switch"))
    return _named(names, _valued("value", declared, options, constants))


def _added_flags(node: ast.Call, constants: Constants) -> dict[str, FlagKnob]:
    """Flags of `parser.add_argument("--name", ...)`; an f-string's variable prefix is taken to be empty."""
    if _called(node) != "add_argument":
        return {}
    names = [name for name in (_constant(argument) for argument in node.args) if name and name.startswith("--")]
    options = {item.arg: item.value for item in node.keywords if item.arg}
    if "action" in options:
        return _by_action(names, options, constants)
    return _named(names, _valued("list" if "nargs" in options else "value", options.get("type"), options, constants))


def _by_action(names: list[Any], options: Mapping[str, ast.expr], constants: Constants) -> dict[str, FlagKnob]:
    action = ast.unparse(options["action"])
    if action.endswith("BooleanOptionalAction"):
        names = [*names, *(f"--no-{name.removeprefix('--')}" for name in names)]
    if "append" in action or action.endswith("PathAction"):
        return _named(names, FlagKnob("list"))
    if "choices" in options:
        return _named(names, FlagKnob("value", None, _texts(_values(options["choices"], constants))))
    return _named(names, FlagKnob("switch"))


def _valued(kind: str, declared: ast.expr | None, options: Mapping[str, ast.expr], constants: Constants) -> FlagKnob:
    """One that takes values of this declared type; where they are listed, there or as its choices, these alone."""
    listed = _inside(declared, "Literal") if declared is not None else None
    values: tuple[Any, ...] | None = None
    if "choices" in options:
        values = _values(options["choices"], constants)
    elif listed is not None and listed is not declared:
        values = _values(listed, constants)
    name = type(values[0]).__name__ if values else ast.unparse(declared) if declared is not None else ""
    return FlagKnob(kind, name if name in _NUMBERS else None, _texts(values))


def _inside(declared: ast.expr, *wrappers: str) -> ast.expr:
    """What `Optional[...]` and its like are about; the expression itself where it is none of them."""
    if isinstance(declared, ast.Subscript) and isinstance(declared.value, ast.Name) and declared.value.id in wrappers:
        return declared.slice
    return declared


def _constants(trees: list[ast.Module]) -> Constants:
    """The lists that stand at the top of these files under a name."""
    found: dict[str, tuple[Any, ...]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values = (
                    _values(node.value, found) if isinstance(node.value, ast.List | ast.Tuple | ast.BinOp) else None
                )
                if values is not None:
                    found[node.targets[0].id] = values
    return found


def _values(node: ast.expr, constants: Constants) -> tuple[Any, ...] | None:
    """The values of a list that is written out, or is made of such ones; None where one would have to run it."""
    if isinstance(node, ast.Constant):
        return (node.value,)
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = _values(node.left, constants), _values(node.right, constants)
        return None if parts[0] is None or parts[1] is None else (*parts[0], *parts[1])
    if isinstance(node, ast.List | ast.Tuple) and all(isinstance(item, ast.Constant) for item in node.elts):
        return tuple(item.value for item in node.elts if isinstance(item, ast.Constant))
    return None


def _texts(values: tuple[Any, ...] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(str(value) for value in values if value is not None)


def _named(names: list[Any], flag: FlagKnob) -> dict[str, FlagKnob]:
    return {name.removeprefix("--"): flag for name in names if name and name.startswith("--")}


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _constant(node: ast.expr | None) -> Any:  # noqa: ANN401 - whatever the source has there
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return node.value if isinstance(node, ast.Constant) else None
