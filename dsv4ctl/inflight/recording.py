"""A watch as a file: what was sampled, line by line, so that the same judge can be asked again.

The first line says what the file is and how it was taken, each further one is a sample. A plain trace of a gauge, two
columns of time and value as a shell loop leaves them, is read as well.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from dsv4ctl.errors import UsageError
from dsv4ctl.inflight.judge import Limits
from dsv4ctl.inflight.sample import Sample
from dsv4ctl.inflight.trace import read_trace
from dsv4ctl.printable import printable

KIND = "dsv4ctl watch-inflight"
SCHEMA_VERSION = 1
_LATEST_CLOCK = 1e11


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
    text = text.removeprefix("\ufeff").lstrip()
    lines = text.split("\n") if text.startswith("{") else text.splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if text.startswith("{"):
        found = _ours(path, lines)
    else:
        found = Recording(Header(path.name, "", None, Limits()), read_trace(path, lines))
    if not found.samples:
        raise UsageError(f"{path} has no sample in it")
    return found


def _ours(path: Path, lines: list[str]) -> Recording:
    from pydantic import TypeAdapter, ValidationError

    of_header, of_sample = TypeAdapter(Header), TypeAdapter(Sample)
    header: Header | None = None
    samples: list[Sample] = []
    last_s: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line, parse_constant=_no_number)
            if header is None:
                _check_kind(path, document)
                header = of_header.validate_python({key: document[key] for key in Header.__dataclass_fields__})
            else:
                samples.append(_checked(of_sample.validate_python(_shown(document["sample"])), last_s))
                last_s[samples[-1].worker] = samples[-1].at_s
        except (json.JSONDecodeError, ValidationError, KeyError, TypeError, ValueError) as error:
            if number == len(lines) and number > 1:
                break
            raise UsageError(f"{path}, line {number}: no sample of a watch ({_first_line(error)})") from error
    assert header is not None
    return Recording(header, tuple(samples))


def _shown(value: Any) -> Any:  # noqa: ANN401 - whatever JSON may hold
    """The same, with every text as it may be printed: a file from somewhere else is no terminal's master."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _shown(item) for key, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _checked(sample: Sample, last_s: Mapping[str, float]) -> Sample:
    """The sample, if its times are some, it is no earlier than the one before it, and its counts can be.

    Raises:
        ValueError
    """
    if sample.at_s < last_s.get(sample.worker, sample.at_s):
        raise ValueError(f"the time of {sample.worker} goes back to {sample.at_s} s")
    if any(queue.count < 0 for queue in sample.queues):
        raise ValueError("a count is below 0")
    if not math.isfinite(sample.at_s) or not 0 <= sample.clock < _LATEST_CLOCK:
        raise ValueError(f"at_s {sample.at_s} and clock {sample.clock} are no times")
    return sample


def _check_kind(path: Path, document: object) -> None:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{path}, line 1: no recording of watch-inflight", hint=f'it begins with "kind": "{KIND}"')
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path} is a recording of version {version}, and this dsv4ctl reads {SCHEMA_VERSION}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
