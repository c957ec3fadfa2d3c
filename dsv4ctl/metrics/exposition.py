"""Reading a Prometheus text exposition of SGLang's, from any version and through any aggregator."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Ranks of one data-parallel rank that hold the same requests and may each export them.
_SAME_REQUESTS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "cp_rank", "attn_cp_rank", "pid"})
_DP_RANK = "dp_rank"

# SGLang's own names since 0.5.12, by the name they had before.
_RENAMED = {"num_prefill_prealloc_queue_reqs": "num_prefill_bootstrap_queue_reqs"}
_PREFIXES = ("sglang:", "sglang_")


class Unreadable(ValueError):
    """The text is no exposition: what is wrong with it."""


@dataclass(frozen=True)
class Point:
    """One series at one moment. `name` is canonical: without SGLang's prefix, in the newest spelling."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Exposition:
    """All series of one scrape."""

    points: tuple[Point, ...]

    def named(self, name: str, **labels: str) -> tuple[Point, ...]:
        """The points of a name that have these labels, among others."""
        wanted = labels.items()
        return tuple(point for point in self.points if point.name == name and wanted <= point.labels.items())

    def total(self, name: str, **labels: str) -> float | None:
        """The figure of the whole worker: ranks that hold the same requests agree, so the largest; the rest is summed.

        None where there is no such series: absent is not zero.
        """
        ranks = self.by_dp_rank(name, **labels)
        return sum(ranks.values()) if ranks else None

    def by_dp_rank(self, name: str, **labels: str) -> dict[int, float]:
        """The same for each data-parallel rank; without such a label it is rank 0."""
        replicas: dict[int, dict[tuple[tuple[str, str], ...], float]] = {}
        for point in _without_parts(self.named(name, **labels)):
            dp_rank = _rank(point)
            same = tuple(sorted((key, value) for key, value in point.labels.items() if key in _SAME_REQUESTS))
            sums = replicas.setdefault(dp_rank, {})
            sums[same] = sums.get(same, 0.0) + point.value
        return {dp_rank: max(sums.values()) for dp_rank, sums in replicas.items()}

    def buckets(self, name: str, **labels: str) -> "Histogram | None":
        """The histogram `name` of the whole worker, cumulative; None where there is none.

        Ranks that hold the same requests each count them: the largest is taken bucket by bucket.
        """
        bounds: dict[float, dict[int, dict[tuple[tuple[str, str], ...], float]]] = {}
        for point in self.named(f"{name}_bucket", **labels):
            bound = _number(point.labels.get("le", ""))
            if bound is None:
                continue
            dp_rank = _rank(point)
            same = tuple(sorted((key, value) for key, value in point.labels.items() if key in _SAME_REQUESTS))
            sums = bounds.setdefault(bound, {}).setdefault(dp_rank, {})
            sums[same] = sums.get(same, 0.0) + point.value
        if not bounds:
            return None
        counts = {bound: sum(max(sums.values()) for sums in ranks.values()) for bound, ranks in bounds.items()}
        return Histogram(tuple(sorted(counts.items())))


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper bound, in ascending order; the last bound is infinity."""

    counts: tuple[tuple[float, float], ...]

    @property
    def count(self) -> float:
        """How many were observed."""
        return self.counts[-1][1] if self.counts else 0.0

    def since(self, before: "Histogram | None") -> "Histogram":
        """What was observed after `before`; all of it where the counts have fallen, which a restart does."""
        if before is None or before.count > self.count:
            return self
        earlier = dict(before.counts)
        return Histogram(tuple((bound, count - earlier.get(bound, 0.0)) for bound, count in self.counts))

    def quantile_bound(self, quantile: float) -> float | None:
        """The upper bound of the bucket that has the quantile, infinity beyond the last; None when nothing was seen.

        A histogram knows no more than that: nothing is interpolated.
        """
        if not self.count:
            return None
        wanted = quantile * self.count
        return next(bound for bound, count in self.counts if count >= wanted)


def _without_parts(points: Sequence[Point]) -> Sequence[Point]:
    """With priority scheduling SGLang exports a total, whose priority is empty, beside the count of each priority."""
    if any(point.labels.get("priority") == "" for point in points):
        return [point for point in points if not point.labels.get("priority")]
    return points


def parse_exposition(text: str) -> Exposition:
    """All series of a scrape.

    Raises:
        Unreadable: it is no exposition.
    """
    return Exposition(tuple(_points(text)))


def _points(text: str) -> Iterator[Point]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield Point(canonical(sample.name), sample.labels, float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise Unreadable(f"no Prometheus exposition: {error}") from error


def _rank(point: Point) -> int:
    """The data-parallel rank of a series; 0 where it names none, or one that is no number."""
    rank = _number(point.labels.get(_DP_RANK, "0"))
    return int(rank) if rank is not None and math.isfinite(rank) else 0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def canonical(name: str) -> str:
    """The newest spelling of a series of SGLang's, without its prefix; other names as they are."""
    bare = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
    return _RENAMED.get(bare, bare)
