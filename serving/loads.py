"""The inflight figures in the answer of /v1/loads: cheap to ask for, and as fresh as the scheduler's own load.

A scheduler publishes its load as one msgpack map in shared memory, and the HTTP process reads it from there. Ours
travels in the same map under the key `dsv4`, so it is of the same moment; a reader that does not know it skips it.

SGLang does not publish while its pipeline-parallel prefill loop has requests inflight and nothing to compute, and up
to 0.5.18 in none of its loops: the load freezes just when requests are stuck. So a queue that reports has it published.
"""

import functools
import importlib
import time
from collections import Counter
from collections.abc import Callable, Set
from typing import Any, get_args

import msgspec

from serving.inflight.report import Inflight, Outcome, State, Stratum
from serving.untyped import Untyped

REPUBLISH_S = 0.2
"""A load older than this is published again when the queue reports. SGLang's own pace, where it has one, is 0.05 s."""

SECTIONS = frozenset({"disagg", "all"})
"""Our figures are given to whoever asks for one of these, or for nothing in particular."""


class Published:
    """A report that keeps what it was last told, for the next load that this process publishes with `publish`."""

    def __init__(
        self,
        publish: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._publish = publish
        self._clock = clock
        self._wall_clock = wall_clock
        self._published_s = clock()
        self._inflight: Inflight | None = None
        self._refreshed_at = 0.0
        self._left: Counter[Outcome] = Counter()
        self._fires = 0
        self._unstamped = 0

    def show(self, inflight: Inflight) -> None:
        """As `Report.show`."""
        self._inflight = inflight
        self._refreshed_at = self._wall_clock()
        now_s = self._clock()
        if now_s - self._published_s >= REPUBLISH_S:
            self._published_s = now_s
            self._publish()

    def left(
        self,
        outcome: Outcome,
        _dwell_s: float,
        _transferred_bytes: int,
        *,
        health_check: bool,
        stratum: Stratum | None,  # noqa: ARG002  in the metrics
    ) -> None:
        """As `Report.left`; how long they took is in the metrics."""
        if not health_check:
            self._left[outcome] += 1

    def fired(self, state: State) -> None:  # noqa: ARG002  by state in the metrics
        """As `Report.fired`."""
        self._fires += 1

    def unstamped(self) -> None:
        """As `Report.unstamped`."""
        self._unstamped += 1

    def section(self) -> dict[str, Any] | None:
        """The figures as they go into the load that is being published; None before the first `show`."""
        inflight = self._inflight
        if inflight is None:
            return None
        self._published_s = self._clock()
        return {
            "by_state": dict(inflight.by_state),
            "health_checks": inflight.health_checks,
            "held": inflight.held,
            "settling": inflight.settling,
            "oldest_age_s": inflight.oldest_age_s,
            "oldest_rid_hash": f"{inflight.oldest_rid_hash:08x}",
            "since_progress_s": inflight.since_progress_s,
            "timeout_s": inflight.timeout_s,
            "standing_timeout_s": inflight.standing_timeout_s,
            "refreshed_at": self._refreshed_at,
            "left_total": {outcome: self._left[outcome] for outcome in get_args(Outcome)},
            "fires_total": self._fires,
            "unstamped_total": self._unstamped,
        }


_published: Published | None = None


def publish_inflight(publish: Callable[[], object]) -> Published:
    """A report whose figures this process's loads carry from now on: SGLang runs one scheduler in a process."""
    global _published
    _published = Published(publish)
    return _published


def with_inflight(writer: Untyped, snapshot: Untyped) -> tuple[tuple[Untyped, ...], dict[str, Untyped]] | None:
    """Before a load is written: the same load with our figures, in a process that has any."""
    section = _published.section() if _published is not None else None
    if section is None:
        return None
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
    return (writer, snapshot_class()(**fields, dsv4=section)), {}


@functools.cache
def snapshot_class() -> Untyped:
    """SGLang's LoadSnapshot with one more field: `dsv4`, the section or None."""
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    def to_dict(self: Untyped, include: Set[str] | None = None) -> dict[str, Any]:
        load: dict[str, Any] = LoadSnapshot.to_dict(self, include)
        if self.dsv4 is not None and (include is None or include & SECTIONS):
            load["dsv4"] = self.dsv4
        return load

    return msgspec.defstruct(
        LoadSnapshot.__name__,
        [("dsv4", dict[str, Any] | None, None)],
        bases=(LoadSnapshot,),
        namespace={"to_dict": to_dict},
        omit_defaults=True,
    )


def decode_inflight(*_: Untyped, **__: Untyped) -> None:
    """Before anything reads loads: SGLang's decoder, which would leave `dsv4` out, gives way to one that knows it."""
    module = importlib.import_module("sglang.srt.managers.load_snapshot")
    vars(module)["snapshot_decoder"] = msgspec.msgpack.Decoder(snapshot_class())
