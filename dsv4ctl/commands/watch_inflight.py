"""dsv4ctl watch-inflight: is a request pinned in prefill's inflight queue, or does work flow through it?"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4ctl.console import Console, Output, command_session
from dsv4ctl.errors import DeadlineExceeded, Dsv4Error, ExitCode, UsageError
from dsv4ctl.options import OutputOption, ProfileArgument

if TYPE_CHECKING:
    from dsv4ctl.inflight.judge import Limits
    from dsv4ctl.inflight.plot import Picture
    from dsv4ctl.inflight.report import Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Until(StrEnum):
    """What `--until` takes."""

    IDLE = "idle"
    PINNED = "pinned"
    FIRED = "fired"


@app.command()
def watch_inflight(
    profile: ProfileArgument = None,
    interval: Annotated[float, typer.Option(min=0.05, max=86400, help="Seconds between two looks.")] = 1.0,
    duration: Annotated[
        float | None, typer.Option(min=0.1, max=31536000, help="End after so many seconds; absent: Ctrl-C.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many looks.")] = None,
    until: Annotated[Until | None, typer.Option(help="End as soon as a queue is so (idle: all of them).")] = None,
    pin_after: Annotated[
        float | None,
        typer.Option(min=0.5, max=86400, help="Seconds from which on a request is called pinned; absent: 15."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write every sample to this file.")] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Judge a recording, or a trace of two columns (time, value), instead.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw count, oldest age, timeout and fires over time: FILE.svg or FILE.png.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch prefill's inflight queue: what is in it, for how long, and how that is known."""
    # As an act, so that a reader who leaves ends the watch and not its exit code: whether a pin was seen.
    with command_session("watch-inflight", output, acting=True) as console:
        from dsv4ctl.inflight.judge import Limits
        from dsv4ctl.inflight.plot import Picture

        if record is not None and plot is not None and record.absolute() == plot.absolute():
            raise UsageError(f"--record and --plot are both {record}: each needs a file of its own")
        limits = Limits() if pin_after is None else Limits(pin_after_s=pin_after)
        picture = Picture(plot)
        if replay is not None:
            if record is not None or profile is not None:
                raise UsageError("--replay judges a file: it takes no profile, and records nothing")
            _replay(console, replay, limits if pin_after is not None else None, picture)
            return
        from dsv4ctl.hosts.connect import open_host
        from dsv4ctl.inflight.session import Wanted, watch_stack
        from dsv4ctl.signals import interruptible
        from dsv4ctl.targets import is_unnamed, open_target

        wanted = Wanted(interval, duration, count, until.value if until is not None else None, limits)
        with interruptible() as interrupts, open_target(profile, open_host, ended=not is_unnamed(profile)) as target:
            console.target = target.name
            seen = watch_stack(console, target, wanted, sleep=interrupts.sleep, record=record, taken=picture.take)
        error: Dsv4Error | None = seen.interrupted
        if error is None and not seen.came and seen.report.outcome != "could not look":
            error = DeadlineExceeded(f"{target.name} did not become {until} within {seen.report.seconds:.0f} s")
        _show(console, seen.report, error)
        _draw(console, picture, target.name)
        if error is not None:
            raise error
        _leave(seen.report)


def _replay(console: Console, path: Path, limits: "Limits | None", picture: "Picture") -> None:
    from dsv4ctl.inflight.recording import read_recording
    from dsv4ctl.inflight.session import replay

    recording = read_recording(path)
    console.target = recording.header.target
    report = replay(console, recording, limits, picture.take)
    _show(console, report)
    _draw(console, picture, recording.header.target)
    _leave(report)


def _show(console: Console, report: "Report", error: Dsv4Error | None = None) -> None:
    from dsv4ctl.inflight.findings import findings_of
    from dsv4ctl.inflight.view import story

    if not console.machine:
        for words in story(report):
            console.data(words)
    for finding in findings_of(report):
        console.finding(finding)
    console.result(report, error)


def _draw(console: Console, picture: "Picture", title: str) -> None:
    if path := picture.draw(title):
        console.say(f"the picture is {path}")


def _leave(report: "Report") -> None:
    """With the exit code of what the watch came to."""
    codes = {
        "healthy": ExitCode.OK,
        "pinned": ExitCode.FAILED,
        "could not look": ExitCode.UNREACHABLE,
        "inconclusive": ExitCode.INCONCLUSIVE,
    }
    raise typer.Exit(codes[report.outcome])
