"""The only module that prints. Data goes to stdout, everything else to stderr. Whatever it is given, it writes no signs
that move a cursor or turn a line round: what a host says may be anything.

`-o table` is for people; `-o json` is one document, `-o jsonl` one object a line, both with the same envelope.
"""

import errno
import json
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from dsv4ctl.errors import Dsv4Error, ExitCode, Interrupted, OperationFailed, Refused, UsageError
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.printable import printable_lines

SCHEMA_VERSION = 1
ACCENT = "cyan"
_PIPE_WIDTH = 200
_LOOK_FOR_CTRL_C_S = 0.2
_UNSEEN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold", Severity.UNKNOWN: "bold"}


class Output(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Column:
    """A column of a table. One that may `fold` gives way when the terminal is narrow; the others keep their width."""

    title: str
    right: bool = False
    fold: bool = False


class Console:
    """What one run of one command says. `target` is what it is about: a profile, a file, a host.

    `acting`: the command changes something. Then whoever reads us may go away (`| head`, a closed terminal, a full
    disk) without stopping the act: what cannot be said any more is dropped, and the exit code tells.
    """

    def __init__(self, command: str, output: Output, *, acting: bool = False) -> None:
        self.command = command
        self.output = output
        self.acting = acting
        self.target: str | None = None
        self.findings: list[Finding] = []
        self.lost: OSError | None = None
        self._told: Dsv4Error | None = None
        self._started_at = datetime.now(UTC)
        # A closed stream is None to Python.
        sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - it lives as long as we do
        sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
        self._out = _rich(sys.stdout.isatty(), stderr=False)
        self._err = _rich(sys.stderr.isatty(), stderr=True)

    @property
    def machine(self) -> bool:
        """Whether a program reads our stdout."""
        return self.output is not Output.TABLE

    @property
    def live(self) -> bool:
        """Whether a live view makes sense: a person, at a terminal."""
        return not self.machine and self._err.is_terminal

    def renderer(self) -> Any:  # noqa: ANN401 - rich's own Console, for Live, which wants exactly that
        """The console that a live view draws on (stderr)."""
        return self._err

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Around everything that is written: output that fails stops a command that only shows, never an act.

        Raises:
            BrokenPipeError: the reader has gone.
            OperationFailed: it could not be written.
        """
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            if self.acting:
                return
            if isinstance(error, BrokenPipeError):
                raise
            raise OperationFailed("the output could not be written", why=error.strerror) from error

    def say(self, text: str) -> None:
        """Progress, for a person."""
        with self.heard():
            self._err.print(printable_lines(text), markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Something a person should know that does not stop us."""
        with self.heard():
            self._err.print(f"warning: {printable_lines(text)}", markup=False, soft_wrap=True, style="bold")

    def data(self, text: str) -> None:
        """A line of data: a log line, a script. Nothing wraps it or colours it."""
        self._write(printable_lines(text))

    def _write(self, text: str) -> None:
        with self.heard():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
        """A table on stdout, for a person."""
        with self.heard():
            if title:
                self._out.print(printable_lines(title), markup=False, style="bold")
            self._out.print(make_table(columns, rows))

    def finding(self, finding: Finding, *, as_data: bool = False) -> None:
        """Note a finding: shown at once to a person, part of the envelope for a program. `as_data`: it is what was
        asked for, and goes to stdout."""
        self.findings.append(finding)
        if self.machine:
            return
        from rich.text import Text

        line = Text(f"{finding.severity.value} ", style=_SEVERITY_STYLE[finding.severity])
        line.append(finding.code, style=ACCENT)
        # Its further lines are not at the margin, where a finding begins.
        message, remedy = (printable_lines(text).replace("\n", "\n  ") for text in (finding.message, finding.remedy))
        line.append(f" {message}\n  ", style="default")
        line.append(remedy, style="dim")
        with self.heard():
            (self._out if as_data else self._err).print(line)

    def result(self, result: object, error: Dsv4Error | None = None) -> None:
        """The answer, for a program: the whole document in `json`, the closing line in `jsonl`. People saw a table.

        With the `error` that the command is about to end with, where there is an answer all the same: in one document.
        """
        self._told = error
        if self.machine:
            self._envelope(result, error=error)

    def event(self, event: Mapping[str, object]) -> None:
        """Something that happened, one line in `jsonl`; nothing in the other two."""
        if self.output is Output.JSONL:
            self._write(_dump({"event": event}))

    def failed(self, error: Dsv4Error) -> None:
        """The last words: what, why, what to do."""
        # Nobody may be there to hear it; that must not hide the error, whose number is the exit code.
        self.acting = True
        with self.heard():
            self._err.print(f"error: {printable_lines(error.what)}", markup=False, style="bold red", soft_wrap=True)
            for label, text in (("why", error.why), ("do", error.hint)):
                if text:
                    self._err.print(f"  {f'{label}:':<4} {printable_lines(text)}", markup=False, soft_wrap=True)
        if self.machine and error is not self._told:
            self._envelope(None, error=error)

    def confirm(self, question: str, *, yes: bool, check: Callable[[], None]) -> None:
        """Ask before something destructive. `check` raises what ends the wait for an answer.

        Raises:
            Refused: the person said no.
            UsageError: there is nobody to ask, and no --yes.
        """
        if yes:
            return
        # A closed one is None to Python.
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(f"{question} Nobody is at the terminal to answer.", hint="add --yes to go ahead")
        self._err.print(f"{printable_lines(question)} [y/N] ", markup=False, end="")
        while not select.select([sys.stdin], [], [], _LOOK_FOR_CTRL_C_S)[0]:
            check()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise Refused("nothing was changed", why="the answer was not yes")

    def _envelope(self, result: object, error: Dsv4Error | None) -> None:
        body: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "target": self.target,
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "result": result,
            "findings": self.findings,
            "error": None,
        }
        if error is not None:
            body["error"] = {
                "what": error.what,
                "why": error.why,
                "hint": error.hint,
                "exit_code": int(error.exit_code),
            }
        self._write(_dump(body, indent=2 if self.output is Output.JSON else None))


def _rich(terminal: bool, *, stderr: bool) -> Any:  # noqa: ANN401 - a rich Console; importing it here costs --help
    from rich.console import Console as RichConsole

    class Quiet(RichConsole):
        """Rich ends the whole program when a pipe breaks; here whoever prints decides (`heard`)."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader has gone")

    return Quiet(stderr=stderr, width=None if terminal else _PIPE_WIDTH, highlight=False, emoji=False)


def make_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Any:  # noqa: ANN401 - a rich Table
    """A table in the house style: no box, aligned, one accent colour, for a live view or for printing."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.fold,
            overflow="fold" if column.fold else "ellipsis",
        )
    for row in rows:
        first, *others = (printable_lines(cell) for cell in row)
        table.add_row(Text(first, style=ACCENT), *(Text(cell) for cell in others))
    return table


@contextmanager
def command_session(command: str, output: Output, *, acting: bool = False) -> Iterator[Console]:
    """The boundary of every command: errors become a message and an exit code; nothing above it catches anything.

    Raises:
        typer.Exit: with the error's exit code.
    """
    console = Console(command, output, acting=acting)
    try:
        yield console
        code = ExitCode.OK
    except Dsv4Error as error:
        console.failed(error)
        code = error.exit_code
    except KeyboardInterrupt:
        console.failed(Interrupted("interrupted at once", hint="`dsv4ctl status` says what is left"))
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough.
        code = ExitCode.OK
    except typer.Exit as leaving:
        code = ExitCode(leaving.exit_code)
    except Exception as error:  # noqa: BLE001 - the outermost boundary
        path = _write_debug_file(command, error)
        console.failed(
            Dsv4Error(
                f"dsv4ctl {command} met a fault of its own: {type(error).__name__}: {error}",
                hint=f"the whole trace is in {path}" if path else "the state directory could not be written",
            )
        )
        code = ExitCode.FAILED
    if console.lost is not None:
        # Python would try to write what is left in the buffers at its end, and complain.
        _silence_streams()
        if code is ExitCode.OK and not isinstance(console.lost, BrokenPipeError):
            code = ExitCode.FAILED
    raise typer.Exit(code)


def _silence_streams() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())


def _write_debug_file(command: str, error: BaseException) -> Path | None:
    import platformdirs

    path = Path(platformdirs.user_state_dir("dsv4ctl")) / f"fault-{command.replace(' ', '-')}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)))
    except OSError:
        return None
    return path


def _dump(value: object, indent: int | None = None) -> str:
    # NaN is not JSON, and a reader that accepts it would compare it wrongly.
    text = json.dumps(value, default=_jsonable, allow_nan=False, indent=indent, ensure_ascii=False)
    # JSON escapes only the oldest of the signs that move a terminal's cursor, or turn its lines round.
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _jsonable(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
