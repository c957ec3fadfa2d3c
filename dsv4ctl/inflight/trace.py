"""A trace of the gauge as a person's shell loop leaves it: lines of a time and a value, however the time is written."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.sample import Queue, Sample

_HINT = "each line of a trace is a time (seconds, a clock such as 14:03:05, or a date with one) and a value"
_COMMENT = re.compile(r"(^|\s)#.*$")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?")
# What `grep` leaves of /metrics, behind the time.
_SERIES = re.compile(r"^(?P<time>.*?)\s*(?<!\S)(?P<series>[A-Za-z_:]\w*(?::\w+)*_reqs(?:\{.*\})?)$")
_DATE_COMMAND = "%a %b %d %H:%M:%S %Y"
_DAY_S = 86_400.0
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From which number on a time is in nanoseconds, microseconds, milliseconds since 1970, and how many are a second."""
_MOST = 1_000_000


@dataclass(frozen=True)
class _Moment:
    """A time in seconds. `is_clock`: it has no date, and begins anew at midnight."""

    seconds: float
    is_clock: bool


def read_trace(path: Path, lines: Sequence[str]) -> tuple[Sample, ...]:
    """The samples of a trace, of a worker that is named after the file.

    Raises:
        UsageError: a line is no time and value, or its time is before that of the line before it.
    """
    moments = list(_moments(path, lines))
    start_s = moments[0][0] if moments else 0.0
    return tuple(Sample(path.name, at_s - start_s, at_s, queues=(Queue("gauge", 0, count),)) for at_s, count in moments)


def _moments(path: Path, lines: Sequence[str]) -> Iterator[tuple[float, int]]:
    before_s: float | None = None
    days = 0.0
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line.removeprefix("\ufeff")).strip()
        if not text:
            continue
        try:
            moment, count = _parts(text)
        except ValueError as error:
            why = str(error) or None
            raise UsageError(f"{path}, line {number}: {text!r} is no `time value`", why=why, hint=_HINT) from error
        at_s = moment.seconds + days
        if before_s is not None and moment.is_clock and before_s - at_s > _DAY_S / 2:
            days += _DAY_S
            at_s += _DAY_S
        if before_s is not None and at_s < before_s:
            raise UsageError(f"{path}, line {number}: the time goes back, from {before_s:g} s to {at_s:g} s")
        before_s = at_s
        yield at_s, count


def _parts(text: str) -> tuple[_Moment, int]:
    """The time and the value of a line.

    Raises:
        ValueError: it has none, with what is wrong where that is not plain.
    """
    words = re.split(r"[\s,;]+", text)
    if len(words) < 2:
        raise ValueError("it has one word")
    rest = text[: text.rindex(words[-1])].rstrip(" \t,;")
    if series := _SERIES.match(rest):
        rest = series["time"]
        if not rest:
            raise ValueError("it says no time: have the loop print `date +%s` before it")
    return _moment(rest), _count(words[-1])


def _count(word: str) -> int:
    value = float(word)
    if not 0 <= value <= _MOST or value != int(value):
        raise ValueError(f"{word} is no number of requests")
    return int(value)


def _moment(text: str) -> _Moment:
    if clock := _CLOCK.fullmatch(text):
        return _Moment(int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3] or 0), is_clock=True)
    try:
        seconds = float(text)
    except ValueError:
        return _Moment(_date(text).timestamp(), is_clock=False)
    if not math.isfinite(seconds):
        raise ValueError(f"{text} is no time")
    unit = next((unit for least, unit in _UNITS if abs(seconds) >= least), 1.0)
    if abs(seconds / unit) >= _UNITS[-1][0]:
        raise ValueError(f"{text} is no time")
    return _Moment(seconds / unit, is_clock=False)


def _date(text: str) -> datetime:
    """A date with a time: ISO 8601, with a zone or without, or as `date` prints it in English."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        # The name of a zone means one thing here and another there; all lines have the same.
        words = text.split()
        try:
            found = datetime.strptime(" ".join([*words[:4], *words[-1:]]), _DATE_COMMAND).replace(tzinfo=UTC)
        except ValueError as error:
            raise ValueError(f"{text!r} is no time") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
