"""Reading SGLang's `/v1/loads`, of a stock engine and of a patched one: the live count, and when it was of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATH = "/v1/loads?include=core,disagg,queues"
"""What is asked for: SGLang leaves out what is not named, and an unknown name is an error."""

# The names that these queues have had, the newest first.
_PREFILL_INFLIGHT = ("prefill_inflight_queue_reqs",)
_REQUESTS = ("num_running_reqs", "num_waiting_reqs")
_FOR_ROOM = "decode_prealloc_queue_reqs"
_DECODE_WAITING = (_FOR_ROOM, "decode_transfer_queue_reqs")


_LATEST = 1e11
_NUMBERS = (
    *("health_checks", "held", "settling", "oldest_age_s", "since_progress_s"),
    *("timeout_s", "refreshed_at", "fires_total"),
)


class UnreadableLoads(ValueError):
    """The answer has no loads in it: what it has instead."""


@dataclass(frozen=True)
class Load:
    """What one data-parallel rank said of itself, `published_at` (unix time of its host; None where it does not say).

    `inflight` is None on an engine that does not disaggregate, `expecting` is what decode waits for. `dsv4` is the
    patched engine's section as it stands, empty on a stock one. `prefilled_tokens` only grows, until the engine starts
    anew. `for_room` are those of `expecting` that have no pages yet. `requests` are all that it has, in whichever
    queue; SGLang counts those inflight among no others.
    """

    dp_rank: int
    published_at: float | None
    mode: str
    inflight: int | None
    expecting: int | None
    prefilled_tokens: int | None
    requests: int | None = None
    for_room: int | None = None
    dsv4: Mapping[str, Any] = field(default_factory=dict)


def parse_loads(document: object) -> tuple[Load, ...]:
    """The loads of an answer, by rank; of two of one rank the one that has more inflight.

    Raises:
        UnreadableLoads: it is no such answer.
    """
    if not isinstance(document, dict) or not isinstance(document.get("loads"), list):
        raise UnreadableLoads(f"no list of loads in {str(document)[:80]!r}")
    try:
        loads = sorted(map(_load, document["loads"]), key=lambda load: (load.dp_rank, load.inflight or 0))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableLoads(f"a load that cannot be read: {error!r}") from error
    return tuple({load.dp_rank: load for load in loads}.values())


def _load(entry: Mapping[str, Any]) -> Load:
    disaggregation: Mapping[str, Any] = entry.get("disaggregation") or {}
    mode = str(disaggregation.get("mode", "null"))
    waiting = [disaggregation[name] for name in _DECODE_WAITING if name in disaggregation]
    prefilled = entry.get("total_prefill_uncached_tokens")
    inflight = next((_count(disaggregation[name]) for name in _PREFILL_INFLIGHT if name in disaggregation), None)
    return Load(
        dp_rank=int(entry.get("dp_rank", 0)),
        published_at=None if entry.get("timestamp") is None else _moment(float(entry["timestamp"])),
        mode=mode,
        inflight=inflight,
        expecting=sum(map(_count, waiting)) if waiting and mode == "decode" else None,
        prefilled_tokens=None if prefilled is None else int(prefilled),
        requests=sum(_count(entry[name]) for name in _REQUESTS) + (inflight or 0)
        if all(name in entry for name in _REQUESTS)
        else None,
        for_room=_count(disaggregation[_FOR_ROOM]) if mode == "decode" and _FOR_ROOM in disaggregation else None,
        dsv4=_section(entry.get("dsv4") or {}),
    )


def _count(value: Any) -> int:  # noqa: ANN401 - whatever the engine says
    count = int(value)
    if count < 0:
        raise ValueError(f"{value} is no number of requests")
    return count


def _moment(seconds: float) -> float:
    if not 0 < seconds < _LATEST:
        raise ValueError(f"{seconds} is no time")
    return seconds


def _section(value: Any) -> Mapping[str, Any]:  # noqa: ANN401 - whatever the engine says
    """Our section, if all of it is what it should be.

    Raises:
        ValueError
    """
    if not isinstance(value, dict):
        raise ValueError(f"dsv4 is {str(value)[:40]!r}")  # noqa: TRY004 - it is the answer that is wrong, not a type of ours
    for name in ("by_state", "left_total"):
        part = value.get(name, {})
        if not isinstance(part, dict) or not all(map(_is_number, part.values())):
            raise ValueError(f"{name} is {str(part)[:40]!r}")
    for name in _NUMBERS:
        if name in value and not _is_number(value[name]):
            raise ValueError(f"{name} is {str(value[name])[:40]!r}")
    return value


def _is_number(value: Any) -> bool:  # noqa: ANN401 - whatever the engine says
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
