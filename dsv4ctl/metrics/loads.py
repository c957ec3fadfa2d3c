"""Reading SGLang's `/v1/loads`, of a stock engine and of a patched one: the live count, and when it was of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATH = "/v1/loads?include=core,disagg,queues"
"""What is asked for: SGLang leaves out what is not named, and an unknown name is an error."""

# The names that these queues have had, the newest first.
_PREFILL_INFLIGHT = ("prefill_inflight_queue_reqs",)
_DECODE_WAITING = ("decode_prealloc_queue_reqs", "decode_transfer_queue_reqs")


class UnreadableLoads(ValueError):
    """The answer has no loads in it: what it has instead."""


@dataclass(frozen=True)
class Load:
    """What one data-parallel rank said of itself, `published_at` (unix time of its host).

    `inflight` is None on an engine that does not disaggregate, `expecting` is what decode waits for. `dsv4` is the
    patched engine's section as it stands, empty on a stock one. `prefilled_tokens` only grows, until the engine starts
    anew.
    """

    dp_rank: int
    published_at: float
    mode: str
    inflight: int | None
    expecting: int | None
    prefilled_tokens: int | None
    dsv4: Mapping[str, Any] = field(default_factory=dict)


def parse_loads(document: object) -> tuple[Load, ...]:
    """The loads of an answer, by rank.

    Raises:
        UnreadableLoads: it is no such answer.
    """
    if not isinstance(document, dict) or not isinstance(document.get("loads"), list):
        raise UnreadableLoads(f"no list of loads in {str(document)[:80]!r}")
    try:
        return tuple(sorted((_load(entry) for entry in document["loads"]), key=lambda load: load.dp_rank))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableLoads(f"a load that cannot be read: {error!r}") from error


def _load(entry: Mapping[str, Any]) -> Load:
    disaggregation: Mapping[str, Any] = entry.get("disaggregation") or {}
    mode = str(disaggregation.get("mode", "null"))
    waiting = [disaggregation[name] for name in _DECODE_WAITING if name in disaggregation]
    prefilled = entry.get("total_prefill_uncached_tokens")
    return Load(
        dp_rank=int(entry.get("dp_rank", 0)),
        published_at=float(entry.get("timestamp", 0.0)),
        mode=mode,
        inflight=next((int(disaggregation[name]) for name in _PREFILL_INFLIGHT if name in disaggregation), None),
        expecting=sum(map(int, waiting)) if waiting and mode == "decode" else None,
        prefilled_tokens=None if prefilled is None else int(prefilled),
        dsv4=entry.get("dsv4") or {},
    )
