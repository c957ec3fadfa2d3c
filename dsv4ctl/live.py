"""What a person sees while a stack comes up and runs: one live table at a terminal, a line per change elsewhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from dsv4ctl.console import Column, Console, make_table
from dsv4ctl.observe import WorkerView
from dsv4ctl.plan import Step
from dsv4ctl.printable import printable

if TYPE_CHECKING:
    from rich.live import Live

COLUMNS = (
    Column("worker"),
    Column("host"),
    Column("pid", right=True),
    Column("state"),
    Column("age", right=True),
    Column("waits for", fold=True),
)
_LAST_STEPS = 6
_ENDED = {"done": "", "failed": ": FAILED", "interrupted": ": INTERRUPTED"}
"""What is said behind a step that has ended so."""


def age_text(seconds: float | None) -> str:
    """An age, short: `4.2s`, `3m05s`, `2h10m`, `3d04h`; `-` for an unknown one."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, second = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{second:02d}s"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minute:02d}m"
    days, hour = divmod(hours, 24)
    return f"{days}d{hour:02d}h"


def worker_rows(views: Sequence[WorkerView]) -> list[list[str]]:
    """The rows of the table of workers."""
    return [
        [view.name, view.host, str(view.pid or "-"), view.word, age_text(view.age_s), view.waits_for] for view in views
    ]


class Region:
    """A part of a person's terminal (stderr) that is drawn anew; elsewhere it is not live, and draws nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    @property
    def is_live(self) -> bool:
        """Whether somebody sees it."""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._console.live:
            from rich.live import Live

            self._live = Live(console=self._console.renderer(), auto_refresh=False, transient=False)
            self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            with self._console.heard():
                self._live.__exit__(None, None, None)
            self._live = None

    def draw(self, picture: Any) -> None:  # noqa: ANN401 - a rich renderable
        """Show this in its place."""
        if self._live is not None:
            with self._console.heard():
                self._live.update(picture, refresh=True)


class LiveView:
    """Shows steps and workers on stderr. A context manager; `report` and `look` are what the acts call."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._views: Sequence[WorkerView] = ()
        self._steps: list[str] = []
        self._now: str = ""
        self._words: dict[str, tuple[str, str]] = {}
        self._region = Region(console)

    def __enter__(self) -> Self:
        self._region.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._now = ""
        self._draw()
        self._region.__exit__(*exc)

    def look(self, views: Sequence[WorkerView]) -> None:
        """The workers as they are now."""
        self._views = views
        for view in views:
            words = (view.word, view.waits_for)
            if self._words.get(view.name) != words:
                self._words[view.name] = words
                self._console.event({"worker": view.name, "state": view.word, "waits_for": view.waits_for or None})
                if not self._region.is_live and not self._console.machine and view.state is not None:
                    waits = f", waits for {view.waits_for}" if view.waits_for else ""
                    self._console.say(f"{view.name} (pid {view.pid or '-'}): {view.word}{waits}")
        self._draw()

    def report(self, step: Step, state: str, seconds: float | None, detail: str | None) -> None:
        """A step changed its state."""
        self._console.event({"step": step.id, "state": state, "seconds": seconds, "detail": detail})
        if state == "begin":
            self._now = step.title
        elif state in _ENDED:
            self._now = ""
            self._note(f"{age_text(seconds):>7}  {step.title}{_ENDED[state]}")
        self._draw()

    def say(self, text: str) -> None:
        """A line that is part of the story."""
        self._note(text)
        self._draw()

    def _note(self, text: str) -> None:
        self._steps.append(text)
        if not self._region.is_live and not self._console.machine:
            self._console.say(text)

    def _draw(self) -> None:
        if self._region.is_live:
            self._region.draw(self._picture())

    def _picture(self) -> Any:  # noqa: ANN401 - a rich renderable
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [
            Text(printable(line), style="dim", no_wrap=True, overflow="ellipsis") for line in self._steps[-_LAST_STEPS:]
        ]
        if self._now:
            parts.append(Text(f"    now  {printable(self._now)}", no_wrap=True, overflow="ellipsis"))
        if self._views:
            parts += [Text(""), make_table(COLUMNS, worker_rows(self._views))]
        return Group(*parts)
