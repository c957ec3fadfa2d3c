"""A watch as a file: what was sampled, line by line, so that the same judge can be asked again.

The first line says what the file is and how it was taken, each further one is a sample. A plain trace of a gauge, two
columns of time and value as a shell loop leaves them, is read as well.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.judge import Limits
from dsv4ctl.inflight.sample import Queue, Sample

KIND = "dsv4ctl watch-inflight"
SCHEMA_VERSION = 1
_CLOCK = re.compile(r"(?:\d{4}-\d\d-\d\d[T ])?(?P<h>\d{1,2}):(?P<m>\d\d)(?::(?P<s>\d\d(?:\.\d+)?))?")
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Header:
    """How a recording was taken. `interval_s` is None for a trace that somebody else took."""

    target: str
    started_at: str
    interval_s: float | None
    limits: Limits


@dataclass(frozen=True)
class Recording:
    """A watch that is over."""

    header: Header
    samples: tuple[Sample, ...]


def write_header(file: TextIO, header: Header) -> None:
    """The first line of a recording."""
    _write(file, {"kind": KIND, "schema_version": SCHEMA_VERSION, **asdict(header)})


def write_sample(file: TextIO, sample: Sample) -> None:
    """One more line, which is on the disk when this returns: a watch is often ended by whatever it watches."""
    _write(file, {"sample": asdict(sample)})
    file.flush()


def _write(file: TextIO, document: dict[str, Any]) -> None:
    file.write(json.dumps(document, separators=(",", ":")) + "\n")


def read_recording(path: Path) -> Recording:
    """A recording of ours, or a trace of two columns.

    Raises:
        UsageError: it is neither, cannot be read, or has no sample; the file and the line are named. A last line that
            was cut short is left out, since that is how a watch ends that was killed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="give a file that --record wrote, or a trace"
        ) from error
    lines = text.splitlines()
    found = _ours(path, lines) if text.startswith("{") else _trace(path, lines)
    if not found.samples:
        raise UsageError(f"{path} has no sample in it")
    return found


def _ours(path: Path, lines: list[str]) -> Recording:
    from pydantic import TypeAdapter, ValidationError

    of_header, of_sample = TypeAdapter(Header), TypeAdapter(Sample)
    header: Header | None = None
    samples: list[Sample] = []
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line)
            if header is None:
                _check_kind(path, document)
                header = of_header.validate_python({key: document[key] for key in Header.__dataclass_fields__})
            else:
                samples.append(of_sample.validate_python(document["sample"]))
        except (json.JSONDecodeError, ValidationError, KeyError, TypeError) as error:
            if number == len(lines) and number > 1:
                break
            raise UsageError(f"{path}, line {number}: no sample of a watch ({_first_line(error)})") from error
    assert header is not None
    return Recording(header, tuple(samples))


def _check_kind(path: Path, document: object) -> None:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{path}, line 1: no recording of watch-inflight", hint=f'it begins with "kind": "{KIND}"')
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path} is a recording of version {version}, and this dsv4ctl reads {SCHEMA_VERSION}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _trace(path: Path, lines: list[str]) -> Recording:
    moments = list(_columns(path, lines))
    start = moments[0][0] if moments else 0.0
    samples = tuple(
        Sample(path.name, moment - start, moment, queues=(Queue("gauge", 0, count),)) for moment, count in moments
    )
    return Recording(Header(path.name, "", None, Limits()), samples)


def _columns(path: Path, lines: list[str]) -> Iterator[tuple[float, int]]:
    before: float | None = None
    days = 0.0
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.lstrip().startswith("#"):
            continue
        try:
            value = float(words[-1])
            moment = _moment(" ".join(words[:-1]))
        except ValueError as error:
            hint = "each line of a trace is a time (seconds, or a clock such as 14:03:05) and a value"
            raise UsageError(f"{path}, line {number}: {line.strip()!r} is no `time value`", hint=hint) from error
        if before is not None and moment + days < before and ":" in words[0] and before - moment - days > _DAY_S / 2:
            days += _DAY_S
        moment += days
        if before is not None and moment < before:
            raise UsageError(f"{path}, line {number}: the time goes back, from {before:g} s to {moment:g} s")
        if value < 0 or value != int(value):
            raise UsageError(f"{path}, line {number}: {words[-1]} is no number of requests")
        before = moment
        yield moment, int(value)


def _moment(text: str) -> float:
    """Seconds of a time as a person or a script wrote it.

    Raises:
        ValueError
    """
    if clock := _CLOCK.fullmatch(text):
        return int(clock["h"]) * 3600 + int(clock["m"]) * 60 + float(clock["s"] or 0)
    return float(text)
