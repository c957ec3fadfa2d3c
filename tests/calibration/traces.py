"""Queues that never were: arrivals, stays and looks at them, from a seed, with the truth beside every look."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from dsv4ctl.inflight.sample import Queue, Sample

MEAN_STAY_S = 0.8


@dataclass(frozen=True)
class Load:
    """What comes to a queue: `occupancy` on average, log-normal stays of this `sigma`, one by one or in `bursts`."""

    occupancy: float
    sigma: float
    bursts: bool

    def requests(self, rng: random.Random, seconds: float) -> list[tuple[float, float]]:
        """When each request enters and leaves."""
        mean_log = math.log(MEAN_STAY_S) - self.sigma**2 / 2
        sizes = (1, 2, 6) if self.bursts else (1,)
        rate = self.occupancy / MEAN_STAY_S / (sum(sizes) / len(sizes))
        found = []
        now_s = 0.0
        while (now_s := now_s + rng.expovariate(rate)) < seconds:
            burst = range(rng.choice(sizes))
            found += [(now_s, now_s + rng.lognormvariate(mean_log, self.sigma)) for _ in burst]
        return found


@dataclass(frozen=True)
class Seen:
    """A look, and the truth: the greatest age that any request had reached since the queue was last empty."""

    sample: Sample
    oldest_s: float


def looks(
    load: Load,
    rng: random.Random,
    *,
    seconds: float,
    interval_s: float = 1.0,
    pinned_at_s: float | None = None,
    counts_left: bool = True,
) -> Iterator[Seen]:
    """Looks at a stock engine's load every `interval_s` or so; with `pinned_at_s` one request never leaves again."""
    requests = load.requests(rng, seconds)
    if pinned_at_s is not None:
        requests = sorted([*requests, (pinned_at_s, math.inf)])
    inside: list[tuple[float, float]] = []
    entered = left = 0
    oldest_s = 0.0
    now_s = rng.random()
    while now_s < seconds:
        while entered < len(requests) and requests[entered][0] <= now_s:
            inside.append(requests[entered])
            entered += 1
        still = [request for request in inside if request[1] > now_s]
        left += len(inside) - len(still)
        inside = still
        queue = Queue("loads", 0, len(inside), written_age_s=0.05 * rng.random())
        gone = {"transferred": float(left)} if counts_left else {}
        oldest_s = max([oldest_s, *(now_s - began_s for began_s, _ in inside)]) if inside else 0.0
        yield Seen(Sample("prefill-0", now_s, now_s, queues=(queue,), left=gone), oldest_s)
        now_s += interval_s * rng.uniform(0.95, 1.05)
