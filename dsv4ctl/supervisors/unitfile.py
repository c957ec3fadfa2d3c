"""Text that systemd reads back exactly: command lines, environment files, unit files."""

import re
from collections.abc import Iterable, Mapping, Sequence

from dsv4ctl.errors import OperationFailed
from dsv4ctl.supervisors.base import UnitSpec

# What may stand in a command line or an assignment without quotes, and means itself there.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
# systemd takes these before a program for its own signs, quoted or not.
_PREFIXES = "@-:+!|"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# Surrogates and the code points that stand for no character: systemd takes text with them for no UTF-8.
_NO_CHARACTER = re.compile(
    "[\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)


def command_line(argv: Sequence[str], *, specifiers: bool = True) -> str:
    """`argv` as ExecStart= and its like take it, on one line.

    Args:
        specifiers: whether `%` is special where this goes: in a unit file it is, in `systemd-run -p` it is not.

    Raises:
        OperationFailed: a program that begins with one of systemd's prefix signs; an argument that is no text.
    """
    return " ".join(_words(argv, specifiers))


def _words(argv: Sequence[str], specifiers: bool) -> list[str]:
    program = argv[0]
    if program[:1] in _PREFIXES:
        raise OperationFailed(
            f"{program!r} cannot be a program in a unit file",
            why=f"systemd gives {program[:1]!r} at its beginning a meaning",
            hint="give its absolute path",
        )
    # `$` begins a variable in an argument; the path of the program is taken as it stands.
    return [_word(program, specifiers), *(_word(word.replace("$", "$$"), specifiers) for word in argv[1:])]


def _word(text: str, specifiers: bool) -> str:
    if "\0" in text or _NO_CHARACTER.search(text):
        raise OperationFailed(f"{text!r} cannot be said to systemd", why="it is no text")
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    escaped = _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", escaped)
    if specifiers:
        escaped = escaped.replace("%", "%%")
    return f'"{escaped}"'


def environment_file(env: Mapping[str, str]) -> str:
    """`env` as EnvironmentFile= takes it: nothing in a value is expanded.

    Raises:
        OperationFailed: a name or value (named, not shown) that systemd would drop.
    """
    _check(env)
    lines = []
    for name, value in env.items():
        escaped = re.sub(r'(["\\`$])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def _check(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise OperationFailed(f"{name!r} is no name for an environment variable")
        if _CONTROL.search(value) or _NO_CHARACTER.search(value):
            raise OperationFailed(
                f"the value of {name} cannot be given to a systemd unit",
                why="systemd refuses characters that are none, and controls other than tab and newline",
            )


def render_unit(
    spec: UnitSpec,
    *,
    description: str,
    after: Iterable[str] = (),
    wants: Iterable[str] = (),
    target: str | None = None,
    secrets_file: str | None = None,
    stop_timeout_s: float = 60.0,
) -> str:
    """The text of a service unit that runs `spec`, as a file `NAME.service`.

    Args:
        description: for `systemctl status`.
        after: units that must have been started before this one.
        wants: units that are started with this one.
        target: the target this unit belongs to: it is started by it and stopped with it.
        secrets_file: an environment file to read beside the variables of `spec`, for what must not stand in a unit
            file, which everyone may read. Write it with `environment_file` and mode 0600.
        stop_timeout_s: how long `systemctl stop` waits for the worker before it kills.

    Raises:
        OperationFailed: something in `spec` cannot be said in a unit file.
    """
    _check(spec.env)
    unit = [f"Description={_plain(description)}"]
    unit += [f"After={name}" for name in after]
    unit += [f"Wants={name}" for name in wants]
    service = ["Type=exec", "KillMode=mixed", f"TimeoutStopSec={stop_timeout_s:g}", "LogRateLimitIntervalSec=0"]
    if spec.cwd:
        service.append(f"WorkingDirectory={_plain(spec.cwd)}")
    service += [f"Environment={_word(f'{name}={value}', specifiers=True)}" for name, value in spec.env.items()]
    if secrets_file:
        service.append(f"EnvironmentFile={_plain(secrets_file)}")
    # One option a line, for the reader: systemd joins lines that end in a backslash.
    program, *arguments = _words(spec.argv, specifiers=True)
    wrapped = (f" \\\n    {word}" if word.startswith("--") else f" {word}" for word in arguments)
    service.append(f"ExecStart={program}{''.join(wrapped)}")
    install = []
    if target:
        unit.append(f"PartOf={target}")
        install.append(f"WantedBy={target}")
    return _sections({"Unit": unit, "Service": service, "Install": install})


def render_target(units: Iterable[str], *, description: str, user: bool = True) -> str:
    """The text of a target that groups service units: starting it starts them, enabling it starts them at boot."""
    unit = [f"Description={_plain(description)}", *(f"Wants={name}" for name in units)]
    return _sections({"Unit": unit, "Install": [f"WantedBy={'default' if user else 'multi-user'}.target"]})


def _plain(text: str) -> str:
    """A value that systemd takes to the end of the line as it stands, but for `%`."""
    if (
        _CONTROL.search(text)
        or _NO_CHARACTER.search(text)
        or "\n" in text
        or text != text.strip()
        or text.endswith("\\")
    ):
        raise OperationFailed(f"{text!r} cannot be said in a unit file", why="it would not be read back as it is")
    return text.replace("%", "%%")


def _sections(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items() if lines)
