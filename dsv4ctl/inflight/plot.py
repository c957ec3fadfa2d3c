"""A watch as a picture: how many requests each queue held, how old the oldest was, and what was said of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsv4ctl.errors import OperationFailed, UsageError
from dsv4ctl.inflight.sample import Sample
from dsv4ctl.inflight.verdict import State, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".svg", ".png")

_ACCENT = "#0b6e8f"
_TIMEOUT = "#555555"
_BANDS: Mapping[State, tuple[str, str]] = {
    "suspect": ("#f2d38b", ""),
    "pinned": ("#e08a78", ""),
    "stale": ("#d4d4d4", "///"),
    "unreachable": ("#bdbdbd", "xxx"),
}
"""Colour and hatching of the time in which a queue was so. What is healthy stays white, what was unseen is hatched."""

_WIDTH_IN, _ROW_IN, _MARGIN_IN = 10.0, 2.6, 0.6


@dataclass
class Curve:
    """What was seen of one queue, a value for each look: None where it was not seen, or the source does not say."""

    at_s: list[float] = field(default_factory=list)
    count: list[int | None] = field(default_factory=list)
    oldest_s: list[float | None] = field(default_factory=list)
    timeout_s: list[float | None] = field(default_factory=list)
    state: list[State] = field(default_factory=list)
    fired_s: list[float] = field(default_factory=list)


class Curves:
    """The curves of all queues of a watch. `take` adds a sample and its verdicts."""

    def __init__(self) -> None:
        self.of_queue: dict[str, Curve] = {}

    def take(self, sample: Sample, verdicts: Sequence[Verdict]) -> None:
        """One more sample."""
        queues = {queue.dp_rank: queue for queue in sample.queues}
        for verdict in verdicts:
            queue = queues.get(verdict.dp_rank)
            curve = self.of_queue.setdefault(verdict.queue, Curve())
            curve.at_s.append(verdict.at_s)
            curve.count.append(verdict.count)
            curve.oldest_s.append(queue.oldest_age_s if queue is not None else None)
            curve.timeout_s.append((queue.timeout_s or None) if queue is not None else None)
            curve.state.append(verdict.state)
            if verdict.state == "fired":
                curve.fired_s.append(verdict.at_s)


class Picture:
    """The picture that a watch leaves at `path`; without a path, none.

    Raises:
        UsageError: its name says no format that is known, or what draws is not installed.
        OperationFailed: the file cannot be written. Both are found out before a watch of hours is begun for it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._curves = Curves()
        if path is not None:
            _check(path)

    def take(self, sample: Sample, verdicts: Sequence[Verdict]) -> None:
        """One more sample, and the verdict on each of its queues."""
        if self._path is not None:
            self._curves.take(sample, verdicts)

    def draw(self, title: str) -> Path | None:
        """Write the file; returns it.

        Raises:
            OperationFailed: it cannot be written.
        """
        if self._path is not None:
            _write(self._curves.of_queue, title, self._path)
        return self._path


def spans_of(curve: Curve, state: State) -> list[tuple[float, float]]:
    """From when to when a queue was in this state: each look counts until the next one."""
    found: list[tuple[float, float]] = []
    for number, (began_s, seen) in enumerate(zip(curve.at_s, curve.state, strict=True)):
        if seen != state:
            continue
        ended_s = curve.at_s[number + 1] if number + 1 < len(curve.at_s) else began_s
        if found and found[-1][1] == began_s:
            began_s = found.pop()[0]
        found.append((began_s, ended_s))
    return found


def _check(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: a picture is one of {', '.join(FORMATS)}, by the end of its name")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            why=str(error),
            hint="install it beside dsv4ctl: `pip install 'dsv4ctl[plot]'`, or record now and draw elsewhere: --record",
        ) from error
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise OperationFailed(f"the picture {path} cannot be written", why=error.strerror) from error


def _write(curves: Mapping[str, Curve], title: str, path: Path) -> None:
    from matplotlib import rc_context

    try:
        # Words stay words in an SVG, and the same watch is the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dsv4ctl"}):
            metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
            _figure(curves, title).savefig(path, metadata=metadata)
    except OSError as error:
        raise OperationFailed(f"the picture {path} cannot be written", why=error.strerror) from error


def _figure(curves: Mapping[str, Curve], title: str) -> "Figure":
    from matplotlib.figure import Figure

    rows = max(1, len(curves))
    figure = Figure(figsize=(_WIDTH_IN, _ROW_IN * rows + _MARGIN_IN), dpi=120, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    all_axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, curve) in zip(all_axes, curves.items(), strict=False):
        _draw_queue(axes, name, curve)
    all_axes[-1].set_xlabel("seconds since the watch began")
    if not curves:
        all_axes[0].text(0.5, 0.5, "nothing was seen", ha="center", va="center", transform=all_axes[0].transAxes)
    return figure


def _draw_queue(axes: "Axes", name: str, curve: Curve) -> None:
    from matplotlib.ticker import MaxNLocator

    drawn: list[Any] = []
    for state, (colour, hatch) in _BANDS.items():
        for number, (began_s, ended_s) in enumerate(spans_of(curve, state)):
            band = axes.axvspan(began_s, ended_s, facecolor=colour, edgecolor="#888888", hatch=hatch, lw=0, zorder=0)
            if not number:
                band.set_label(state)
                drawn.append(band)
    (count,) = axes.step(curve.at_s, _gaps(curve.count), where="post", color=_ACCENT, lw=1.5, label="inflight")
    axes.set_title(name, loc="left", fontsize="small")
    axes.set_ylabel("requests", color=_ACCENT)
    axes.set_ylim(0, 1.3 * max([1, *(seen for seen in curve.count if seen is not None)]))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01)
    drawn.insert(0, count)
    if any(age is not None for age in curve.oldest_s):
        ages = axes.twinx()
        drawn += ages.plot(curve.at_s, _gaps(curve.oldest_s), color="black", lw=1, ls=":", label="oldest")
        if any(limit is not None for limit in curve.timeout_s):
            drawn += ages.plot(curve.at_s, _gaps(curve.timeout_s), color=_TIMEOUT, lw=0.8, ls="--", label="timeout")
        ages.set_ylabel("age in s")
        ages.set_ylim(0, 1.15 * max([1.0, *(value for value in (*curve.oldest_s, *curve.timeout_s) if value)]))
    for number, fired_s in enumerate(curve.fired_s):
        line = axes.axvline(fired_s, color="#b0261a", lw=1.5, label=None if number else "watchdog fired")
        if not number:
            drawn.append(line)
    axes.legend(
        handles=drawn, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(drawn), fontsize="x-small", frameon=False
    )


def _gaps(values: Sequence[float | None]) -> list[float]:
    """The curve has a gap where nothing was seen."""
    return [float("nan") if value is None else float(value) for value in values]
