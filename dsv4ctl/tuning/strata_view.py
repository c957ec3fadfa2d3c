"""What is shown of the strata of a window, and what programs get of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from dsv4ctl.console import Column
from dsv4ctl.tuning.bound import Bound, NoBound
from dsv4ctl.tuning.strata import Judged, judged, largest_of
from dsv4ctl.tuning.window import Measured

COLUMNS = (
    Column("KV of a request"),
    Column("requests", right=True),
    Column("ended early", right=True),
    Column("longest seen", right=True),
    Column("bound", right=True),
    Column("missing", right=True),
)


def stratum_rows(strata: Sequence[Judged]) -> list[list[str]]:
    """One row a stratum that has requests in it."""
    return [
        [
            one.words,
            str(one.stratum.history.requests),
            str(one.stratum.history.ended),
            _longest(one),
            f"{one.bound.seconds:g} s ({one.bound.quantile:.1%})" if isinstance(one.bound, Bound) else "none",
            f"{one.bound.missing} requests" if isinstance(one.bound, NoBound) and one.bound.missing else "",
        ]
        for one in strata
        if one.stratum.history.requests
    ]


def _longest(one: Judged) -> str:
    seconds = one.stratum.longest_s
    if seconds is None or math.isinf(seconds):
        return "" if seconds is None else f"over {one.stratum.history.edges[-1]:g} s"
    return f"up to {seconds:g} s"


def stratum_lines(measured: Measured, strata: Sequence[Judged]) -> Iterator[str]:
    """What the table does not say: what was not seen, why more requests would not help, and who does not count."""
    if measured.recordings:
        yield "recordings do not say how much KV a request had: what was recorded is in the whole, and in no stratum"
    if not measured.strata:
        who = ", ".join(measured.without_strata) or "not every prefill worker"
        yield (
            f"no strata: {who} does not count by the KV of requests, so that a few long transfers may be drowned by "
            "many short ones; its plugin is older than this dsv4ctl"
        )
        return
    unseen = [one.words for one in strata if not one.stratum.history.requests]
    if unseen and len(unseen) < len(strata):
        yield f"no request was seen of these strata: {', '.join(unseen)}"
    for one in strata:
        if one.stratum.history.requests and isinstance(one.bound, NoBound) and one.bound.missing is None:
            yield f"{one.words}: no bound: {one.bound.why}"


def unfounded_lines(strata: Sequence[Judged], seconds: float, bound: Bound) -> Iterator[str]:
    """Why no timeout is recommended: these strata speak against the one that the other requests ask for."""
    for one in strata:
        assert isinstance(one.bound, NoBound)
        needs = f"it takes {one.bound.missing} more of them to bound how long" if one.bound.missing else one.bound.why
        yield (
            f"{seconds:g} s is not founded for the stratum {one.words!r}: of {one.stratum.history.requests} requests "
            f"{one.stratum.seen_above(bound.seconds)} stayed longer than {bound.seconds:g} s, the longest "
            f"{_longest(one)}; {needs}"
        )


def strata_as_data(measured: Measured, bound: Bound | NoBound) -> dict[str, object]:
    """For programs: each stratum with its bound or what it lacks, and on which bound a recommendation rests."""
    strata = judged(measured.strata)
    largest = largest_of(bound, strata) if isinstance(bound, Bound) else None
    return {
        "strata": [
            {
                "stratum": one.stratum.name,
                "requests": one.stratum.history.requests,
                "ended_early": one.stratum.history.ended,
                "longest_s": _finite(one.stratum.longest_s),
                "buckets": [
                    {"up_to_s": edge, "requests": count, "ended_early": early}
                    for edge, count, early in zip(
                        (*one.stratum.history.edges, None),
                        one.stratum.history.in_buckets,
                        one.stratum.early.in_buckets,
                        strict=True,
                    )
                ],
                "bound": asdict(one.bound) if isinstance(one.bound, Bound) else None,
                "why_no_bound": asdict(one.bound) if isinstance(one.bound, NoBound) else None,
            }
            for one in strata
        ],
        "without_strata": measured.without_strata,
        "rests_on": None if largest is None else {"stratum": largest.stratum, "seconds": largest.bound.seconds},
    }


def _finite(seconds: float | None) -> float | None:
    """The same; None for what lies beyond the last bucket, which the buckets show."""
    return seconds if seconds is not None and math.isfinite(seconds) else None
