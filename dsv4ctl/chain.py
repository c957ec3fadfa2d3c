"""The timers of a stack as its processes have them: what each engine tells, else what it was started with."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsv4ctl.engine_keys import headers_by, keys_of
from dsv4ctl.errors import CannotLook
from dsv4ctl.metrics.loads import PATH as LOADS
from dsv4ctl.metrics.loads import UnreadableLoads, parse_loads
from dsv4ctl.profile.schema import Role
from dsv4ctl.restart.running import Running, read_running
from dsv4ctl.supervisors.base import UnitState
from dsv4ctl.timers import Timer, timers_of

if TYPE_CHECKING:
    from dsv4ctl.fleet import Place
    from dsv4ctl.state import WorkerRecord
    from dsv4ctl.targets import Target

PATH = "/server_info"
HTTP_TIMEOUT_S = 5.0

_ASKED = frozenset({Role.PREFILL.value, Role.DECODE.value})
_FIGURES = {"T": "inflight_timeout_s", "B": "bootstrap_timeout_s", "W": "waiting_timeout_s"}
_HEARTBEAT = ("heartbeat_interval_s", "heartbeat_failures")


@dataclass(frozen=True)
class Unread:
    """A worker of which something could not be learnt, in a sentence that says what was taken in its place. `runs`:
    there is a process to be read."""

    worker: str
    why: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.worker} {self.why}"


@dataclass(frozen=True)
class Chain:
    """The timers of all workers, each with its source, and what could not be learnt."""

    timers: tuple[Timer, ...]
    unread: tuple[Unread, ...]


def read_chain(target: "Target") -> Chain:
    """Look once at every worker of a stack.

    Raises:
        HostUnreachable: a host could not be asked.
    """
    timers: list[Timer] = []
    unread: list[Unread] = []
    for one in read_running(target.fleet, target.records):
        started, lacking = _started_with(one)
        unread += lacking
        figures: tuple[Mapping[str, object], ...] = ()
        if one.state is UnitState.RUNNING and one.record.role in _ASKED:
            try:
                figures = _ask(target.fleet[one.host], one)
            except NotTold as error:
                unread.append(Unread(one.name, f"does not tell its timers: {error}", runs=True))
        timers += with_told(started, figures)
    return Chain(tuple(timers), tuple(unread))


class NotTold(Exception):
    """An engine did not answer, or with something else."""


def told(document: object) -> tuple[Mapping[str, object], ...]:
    """What the patched engine tells of itself in its answer to `/server_info`, by data-parallel rank; empty for a stock
    one.

    Raises:
        NotTold: it is no such answer.
    """
    states = document.get("internal_states") if isinstance(document, dict) else None
    if not isinstance(states, list):
        raise NotTold(f"{PATH} has no internal_states")
    figures = [state.get("dsv4") for state in states if isinstance(state, dict)]
    return tuple(one for one in figures if isinstance(one, dict))


def with_told(timers: tuple[Timer, ...], figures: tuple[Mapping[str, object], ...]) -> Iterator[Timer]:
    """The timers of one worker as its engine tells them; those that it says nothing of as they were.

    Of several data-parallel ranks it is the one that waits longest; one that is switched off waits for ever.
    """
    for timer in timers:
        values = [seconds for one in figures if (seconds := _seconds(timer.letter, one)) is not None]
        if not values:
            yield timer
            continue
        longest = None if timer.letter == "T" and 0.0 in values else max(values)
        is_default = timer.is_default and timer.seconds == longest
        yield replace(timer, seconds=longest, source="engine", is_default=is_default)


def told_timeouts_s(place: "Place", record: "WorkerRecord") -> tuple[float, float] | None:
    """The inflight timeout that a prefill worker says is in force, and the one that comes back when a lease on it ends,
    0 for none; None where it does not say, or is none.

    It is read from what the scheduler has published, so that one that stands still is no wait.
    """
    if record.role != Role.PREFILL.value:
        return None
    try:
        loads = parse_loads(_get(place, record, LOADS, keys_of(place, record, "--api-key")))
    except (NotTold, UnreadableLoads, CannotLook):
        return None
    now = _longest(load.dsv4.get("timeout_s") for load in loads)
    standing = _longest(load.dsv4.get("standing_timeout_s", load.dsv4.get("timeout_s")) for load in loads)
    return None if now is None or standing is None else (now, standing)


def _longest(told_s: Iterable[object]) -> float | None:
    values = [seconds for each in told_s if (seconds := _number(each)) is not None]
    return None if not values else 0.0 if 0.0 in values else max(values)


def _seconds(letter: str, figures: Mapping[str, object]) -> float | None:
    if letter == "H":
        interval_s, failures = (_number(figures.get(name)) for name in _HEARTBEAT)
        return None if interval_s is None or failures is None else interval_s * failures
    return _number(figures.get(_FIGURES.get(letter, "")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _started_with(one: Running) -> tuple[tuple[Timer, ...], list[Unread]]:
    """The timers by what its process was started with; by the plan where that cannot be read."""
    runs = one.state is UnitState.RUNNING
    unread: list[Unread] = []
    if one.argv is not None and one.environ is not None:
        try:
            found = timers_of(one.name, one.record.role, one.environ, one.argv)
        except ValueError as error:
            unread.append(Unread(one.name, f"was started with timers that cannot be compared: {error}", runs=runs))
        else:
            return tuple(replace(timer, source="process") for timer in found), []
    else:
        why = f"cannot be read back ({one.unread or 'its process is gone'})" if runs else "does not run"
        unread.append(Unread(one.name, f"{why}; what is planned is taken", runs=runs))
    try:
        return timers_of(one.name, one.record.role, one.record.env, one.record.argv), unread
    except ValueError as error:
        return (), [*unread, Unread(one.name, f"has a plan with timers that cannot be compared: {error}", runs=runs)]


def _ask(place: "Place", one: Running) -> tuple[Mapping[str, object], ...]:
    # The record has a fingerprint in place of the key, and the process the key itself.
    return told(_get(place, one.record, PATH, headers_by(one.argv or ())))


def _get(place: "Place", record: "WorkerRecord", path: str, headers: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """What a worker answers.

    Raises:
        NotTold
    """
    import httpx

    try:
        with place.host.http(timeout_s=HTTP_TIMEOUT_S) as client:
            response = client.get(f"http://{record.listen}:{record.port}{path}", headers=dict(headers))
    except httpx.HTTPError as error:
        raise NotTold(str(error) or type(error).__name__) from error
    if response.status_code != httpx.codes.OK:
        raise NotTold(f"{response.url.path} answers {response.status_code}")
    try:
        return json.loads(response.content)
    except ValueError as error:
        raise NotTold(f"{response.url.path} answers with no JSON") from error
