"""Looking at all workers in turn, at an interval, for as long as is wanted."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

from dsv4ctl.inflight.sample import Decode, Sample

# A pace of our own that is a multiple of the engine's would always see the same phase of it.
_JITTER = 0.05


class LooksAtPrefill(Protocol):
    """One prefill worker that can be sampled."""

    def look(self) -> Sample: ...


class LooksAtDecode(Protocol):
    """One decode worker that can be asked what it waits for."""

    @property
    def answers(self) -> bool: ...

    def look(self) -> Decode | None: ...


@dataclass
class Pace:
    """When to look: every `interval_s`, shifted at random by a twentieth of it.

    `lost` counts the looks that were due while an earlier one was still under way: they are left out, and said.
    """

    interval_s: float
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.SystemRandom)
    lost: int = 0
    _due_s: float | None = None

    def wait_s(self) -> float:
        """How long to wait for the next look."""
        now_s = self.clock()
        if self._due_s is None:
            self._due_s = now_s
        self._due_s += self.interval_s
        if now_s > self._due_s:
            missed = math.ceil((now_s - self._due_s) / self.interval_s)
            self.lost += missed
            self._due_s += missed * self.interval_s
        shift_s = self.interval_s * self.rng.uniform(-_JITTER, _JITTER)
        return max(0.0, self._due_s + shift_s - now_s)


def watch(
    prefills: Sequence[LooksAtPrefill],
    decodes: Sequence[LooksAtDecode],
    pace: Pace,
    *,
    sleep: Callable[[float], None],
    duration_s: float | None = None,
    count: int | None = None,
) -> Iterator[tuple[Sample, ...]]:
    """The samples of all prefill workers, look by look; the first at once.

    All are asked at the same time, and each sample is completed by what the decode workers said. Ends after
    `duration_s` or `count` looks, or when `sleep` raises.
    """
    began_s = pace.clock()
    taken = 0
    with ThreadPoolExecutor(max(1, len(prefills) + len(decodes)), thread_name_prefix="look") as pool:
        while True:
            of_decode = [pool.submit(decode.look) for decode in decodes]
            of_prefill = [pool.submit(prefill.look) for prefill in prefills]
            decode = together([future.result() for future in of_decode])
            away = sum(not each.answers for each in decodes)
            yield tuple(replace(future.result(), decode=decode, decodes_away=away) for future in of_prefill)
            taken += 1
            if count is not None and taken >= count:
                return
            wait_s = pace.wait_s()
            if duration_s is not None and pace.clock() + wait_s - began_s > duration_s:
                return
            sleep(wait_s)


def together(looks: Sequence[Decode | None]) -> Decode | None:
    """All decode workers as one; None where there is none, or one of them does not say: then nobody knows."""
    known = [look for look in looks if look is not None]
    if not known or len(known) < len(looks):
        return None
    return Decode(
        sum(look.expecting for look in known),
        max(look.silent_s for look in known),
        min(look.all_silent_s for look in known),
    )
