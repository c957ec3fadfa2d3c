"""A window over a running stack: every prefill worker's counts, block after block, and what decode had waiting."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.engine_keys import keys_of
from dsv4ctl.errors import CannotLook, UsageError
from dsv4ctl.inflight.collect import DecodeLook
from dsv4ctl.inflight.pages import CannotSample, Pages
from dsv4ctl.metrics.exposition import Exposition, Unreadable, parse_exposition
from dsv4ctl.metrics.loads import PATH, UnreadableLoads, parse_loads
from dsv4ctl.tuning.dwells import History, together
from dsv4ctl.tuning.recordings import Recorded
from dsv4ctl.tuning.scrapes import Counted, NoHistogram
from dsv4ctl.tuning.strata import Stratum, of_all

if TYPE_CHECKING:
    from dsv4ctl.targets import Target

BLOCK_S = 5.0
"""How often the metrics are asked for: rendering them costs an engine some tenth of a second of one core."""

PROMPTS = "prompt_tokens_histogram"


@dataclass(frozen=True)
class Measured:
    """What a window has shown. `in_force_s`: the timeout of each prefill worker, by its name, as it was at the end.
    `restarts`: workers that were started in the window, which begins anew then. `waiting` of `looks` at all decode
    workers found requests that wait for pages there. `prompt_tokens`: (mean, largest bucket's edge) of the prompts in
    the window; None where none are counted. `pool_tokens`: of the smallest prefill worker. `strata`: none where one
    does not count them, which `without_strata` names. `recordings`: what of the history was recorded before."""

    history: History
    in_force_s: dict[str, float]
    restarts: tuple[str, ...]
    waiting: int
    looks: int
    prompt_tokens: tuple[float, float] | None
    pool_tokens: float | None
    strata: tuple[Stratum, ...] = ()
    without_strata: tuple[str, ...] = ()
    recordings: tuple[Recorded, ...] = ()


@dataclass
class _Prefill:
    pages: Pages
    counted: Counted
    at_first: Exposition | None = None
    at_last: Exposition | None = None

    def look(self, at_s: float) -> None:
        """Count what has left the queue.

        Raises:
            CannotLook: the worker does not answer, or does not count.
        """
        try:
            told = parse_exposition(self.pages.get("/metrics").body.decode(errors="replace"))
            self.counted.look(told, at_s)
        except (CannotSample, Unreadable) as error:
            raise CannotLook(
                f"{self.counted.worker} could not be asked for its metrics", why=str(error), hint="`dsv4ctl status`"
            ) from error
        except NoHistogram as error:
            raise CannotLook(
                f"{self.counted.worker} does not count how long requests stay in its inflight queue",
                why="it runs SGLang without our plugin, or without --enable-metrics",
                hint="set args.enable-metrics = true, and see `dsv4ctl doctor --only PATCHES_DIFFER`",
            ) from error
        self.at_first, self.at_last = self.at_first or told, told

    def timeout_s(self) -> float:
        """The one in force.

        Raises:
            CannotLook
        """
        try:
            loads = parse_loads(json.loads(self.pages.get(PATH).body))
            return max(float(load.dsv4["timeout_s"]) for load in loads)
        except (CannotSample, UnreadableLoads, ValueError, KeyError) as error:
            raise CannotLook(
                f"{self.counted.worker} does not say which inflight timeout is in force", why=str(error)
            ) from error


@dataclass
class Window:
    """All workers of a stack that have to do with it."""

    prefills: Sequence[_Prefill]
    decodes: Sequence[DecodeLook]
    clock: Callable[[], float]
    _waiting: int = 0
    _looks: int = 0

    def measure(self, seconds: float, *, sleep: Callable[[float], None], told: Callable[[History], None]) -> Measured:
        """Look every `BLOCK_S` for so long; `told` hears of the history after each block.

        Raises:
            CannotLook: a prefill worker does not answer, or does not count.
        """
        began_s = self.clock()
        self._look()
        while (now_s := self.clock()) < began_s + seconds:
            sleep(min(BLOCK_S, began_s + seconds - now_s))
            self._look()
            told(self.history)
        return self._measured()

    @property
    def history(self) -> History:
        """That of all prefill workers together: what they do at the same moment is in the same block."""
        return together([one.counted.history for one in self.prefills])

    def _look(self) -> None:
        for one in self.prefills:
            one.look(self.clock())
        found = [decode.look() for decode in self.decodes]
        self._looks += all(one is not None for one in found)
        self._waiting += any(one is not None and one.for_room > 0 for one in found)

    def _measured(self) -> Measured:
        return Measured(
            history=self.history,
            in_force_s={one.counted.worker: one.timeout_s() for one in self.prefills},
            restarts=tuple(one.counted.worker for one in self.prefills if one.counted.restarts),
            waiting=self._waiting,
            looks=self._looks,
            prompt_tokens=_prompts(self.prefills),
            pool_tokens=min(filter(None, map(_pool, self.prefills)), default=None),
            strata=of_all([one.counted.strata for one in self.prefills]),
            without_strata=tuple(one.counted.worker for one in self.prefills if not one.counted.strata),
        )


def _prompts(prefills: Sequence[_Prefill]) -> tuple[float, float] | None:
    """Mean and largest bucket's edge of the prompts that came in the window."""
    total = count = largest = 0.0
    for one in prefills:
        if one.at_first is None or one.at_last is None:
            continue
        before, after = one.at_first.buckets(PROMPTS), one.at_last.buckets(PROMPTS)
        sums = [told.total(f"{PROMPTS}_sum") or 0.0 for told in (one.at_first, one.at_last)]
        if after is None or sums[1] < sums[0]:
            continue
        during = after.since(before)
        total, count = total + sums[1] - sums[0], count + during.count
        largest = max(largest, during.quantile_bound(1.0) or 0.0)
    return (total / count, largest) if count else None


def _pool(one: _Prefill) -> float | None:
    return one.at_last.total("max_total_num_tokens") if one.at_last is not None else None


@contextmanager
def open_window(target: "Target", clock: Callable[[], float] = time.monotonic) -> Iterator[Window]:
    """Connections to every prefill and decode worker of a stack; leaving closes them.

    Raises:
        UsageError: the stack has no prefill worker.
    """
    prefills: list[_Prefill] = []
    decodes: list[DecodeLook] = []
    with ExitStack() as exits:
        for host, record in target.records:
            for worker in record.workers:
                if worker.role not in {"prefill", "decode"}:
                    continue
                place = target.fleet[host]
                keys = keys_of(place, worker, "--api-key")
                pages = Pages(f"http://{worker.listen}:{worker.port}", place.host.transport(), clock, keys)
                exits.callback(pages.close)
                if worker.role == "prefill":
                    prefills.append(_Prefill(pages, Counted(worker.name)))
                else:
                    decodes.append(DecodeLook(worker.name, pages, clock))
        if not prefills:
            raise UsageError(
                f"{target.name} has no prefill worker, so it has no inflight queue",
                hint="name a stack with prefill and decode apart",
            )
        yield Window(prefills, decodes, clock)
