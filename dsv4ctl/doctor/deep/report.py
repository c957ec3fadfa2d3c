"""What a deep look found, as values: read from what the engine's interpreter printed on each host."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dsv4ctl.doctor.deep.plan import CopyPlan, Pairing, SidePlan

SCHEMA_VERSION = 1
"""Of `python -m serving transfer --json` and `gpu-copies --json`."""


@dataclass(frozen=True)
class PairSpeed:
    """Two ranks by their numbers.

    Attributes:
        lane: transports as UCX names them; None where it is not known.
        first_write_s: to the end of the first write, connecting included.
        gb_per_s: of the median write by its size in bytes, in 10^9 bytes a second.
    """

    source: int
    destination: int
    lane: tuple[str, ...] | None
    first_write_s: float
    gb_per_s: Mapping[int, float]


@dataclass(frozen=True)
class Round:
    """All ranks writing to all at once: the size of each write, how many, and GB/s of all together."""

    size_bytes: int
    writes: int
    gb_per_s: float


@dataclass(frozen=True)
class Problem:
    """`kind` is corrupt, failed or unknown; `what` is a sentence. The ranks are None where it is not about one."""

    kind: str
    what: str
    source: int | None = None
    destination: int | None = None


@dataclass(frozen=True)
class PairingReport:
    """One prefill worker and one decode worker."""

    pairing: Pairing
    backend: str | None = None
    nixl: str | None = None
    ucx: str | None = None
    pairs: tuple[PairSpeed, ...] = ()
    concurrent: tuple[Round, ...] = ()
    problems: tuple[Problem, ...] = ()
    untested: tuple[str, ...] = ()

    @property
    def bulk(self) -> Mapping[tuple[int, int], float]:
        """GB/s of each pair at its largest size."""
        return {
            (pair.source, pair.destination): pair.gb_per_s[max(pair.gb_per_s)] for pair in self.pairs if pair.gb_per_s
        }

    @property
    def median_gb_per_s(self) -> float | None:
        """Over the pairs, each alone, at the largest size."""
        return median(self.bulk.values()) if self.bulk else None

    @property
    def slowest(self) -> tuple[int, int] | None:
        """The pair with the lowest speed at the largest size, as (source, destination)."""
        return min(self.bulk, key=lambda pair: self.bulk[pair]) if self.bulk else None

    @property
    def together_gb_per_s(self) -> float | None:
        """The best of the rounds in which all pairs wrote at once."""
        return max((one.gb_per_s for one in self.concurrent), default=None)


@dataclass(frozen=True)
class Copy:
    """One direction between two GPUs. `what` is what was wrong at the destination, None for nothing."""

    source: str
    destination: str
    what: str | None
    gb_per_s: float
    peer_access: bool


@dataclass(frozen=True)
class CopyReport:
    """The plain copies of one host. `failure` says why there are none; `tried`: a copy had begun."""

    plan: CopyPlan
    copies: tuple[Copy, ...] = ()
    failure: str = ""
    tried: bool = False


@dataclass(frozen=True)
class DeepReport:
    """All of it. `why_nothing` says why nothing was tried, for instance that engines run; empty where it was."""

    pairings: tuple[PairingReport, ...] = ()
    copies: tuple[CopyReport, ...] = ()
    why_nothing: str = ""


def rank_name(side: SidePlan, rank: int) -> str:
    """How messages name a rank: `prefill-0 rank 2 (GPU 6)`."""
    gpu = side.gpus[rank] if rank < len(side.gpus) else None
    return f"{side.worker} rank {rank}" + (f" (GPU {gpu})" if gpu is not None else "")


def as_data(report: DeepReport) -> dict[str, Any]:
    """For JSON. Speeds in GB/s of 10^9 bytes, alone at the largest size."""
    return {
        "why_nothing": report.why_nothing or None,
        "transfers": [_pairing_data(one) for one in report.pairings],
        "copies": [
            {"host": one.plan.host, "failure": one.failure or None, "copies": [vars(copy) for copy in one.copies]}
            for one in report.copies
        ],
    }


def _pairing_data(report: PairingReport) -> dict[str, Any]:
    source, destination = report.pairing.source, report.pairing.destination
    slowest = report.slowest
    return {
        "source": {"worker": source.worker, "host": source.host, "gpus": source.gpus},
        "destination": {"worker": destination.worker, "host": destination.host, "gpus": destination.gpus},
        "why_not": report.pairing.why_not or None,
        "backend": report.backend,
        "nixl": report.nixl,
        "ucx": report.ucx,
        "median_gb_per_s": report.median_gb_per_s,
        "slowest_pair": None if slowest is None else {"source": slowest[0], "destination": slowest[1]},
        "slowest_gb_per_s": None if slowest is None else report.bulk[slowest],
        "together_gb_per_s": report.together_gb_per_s,
        "pairs": [
            {
                "source": pair.source,
                "destination": pair.destination,
                "lane": pair.lane,
                "first_write_s": pair.first_write_s,
                "gb_per_s_by_size_bytes": dict(pair.gb_per_s),
            }
            for pair in report.pairs
        ],
        "concurrent": [vars(one) for one in report.concurrent],
        "problems": [vars(problem) for problem in report.problems],
        "untested": report.untested,
    }


def parse_source(pairing: Pairing, text: str, endings: Mapping[int, str]) -> PairingReport:
    """The report of the source side. `endings` are the last words of ranks of the destination side.

    Raises:
        ValueError, KeyError, TypeError: it is something else.
    """
    data = _document(text)
    return PairingReport(
        pairing,
        data["backend"],
        data["nixl"],
        data["ucx"],
        tuple(
            PairSpeed(
                pair["source"],
                pair["destination"],
                None if pair["lane"] is None else tuple(pair["lane"]),
                pair["first_write_s"],
                {one["size_bytes"]: one["gb_per_s"] for one in pair["sizes"]},
            )
            for pair in data["pairs"]
        ),
        tuple(Round(one["size_bytes"], one["writes"], one["gb_per_s"]) for one in data["concurrent"]),
        tuple(_problem(found, endings, _last_words(data["sources"])) for found in data["problems"]),
        tuple(data["untested"]),
    )


def parse_endings(text: str) -> Mapping[int, str]:
    """What the ranks of the destination side leave behind that may explain a problem, by rank: how one ended that did
    so badly, and what UCX calls an error.

    Raises:
        ValueError, KeyError, TypeError: it is something else.
    """
    return _last_words(_document(text)["ranks"])


def parse_copies(plan: CopyPlan, text: str) -> CopyReport:
    """The copies of one host.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it is something else.
    """
    return CopyReport(
        plan,
        tuple(
            Copy(
                plan.gpus[copy["source"]],
                plan.gpus[copy["destination"]],
                copy["what"],
                copy["gb_per_s"],
                bool(copy["peer_access"]),
            )
            for copy in _document(text)["copies"]
        ),
        tried=True,
    )


def _document(text: str) -> Any:  # noqa: ANN401 - JSON
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"this dsv4ctl reads reports of version {SCHEMA_VERSION}; install the same one on the host")
    return data


def _last_words(ranks: Sequence[Mapping[str, Any]]) -> Mapping[int, str]:
    found = {}
    for rank in ranks:
        words = []
        if rank["status"] != 0:
            words.append(f"it {rank['ending']}")
            words += [f"the last it said is: {rank['last_words'][-1]}"] if rank["last_words"] else []
        words += [f"UCX says: {error}" for error in rank["ucx_errors"][:1]]
        if words:
            found[int(rank["rank"])] = "; ".join(words)
    return found


def _problem(found: Mapping[str, Any], destinations: Mapping[int, str], sources: Mapping[int, str]) -> Problem:
    what, source, destination = str(found["what"]), found["source"], found["destination"]
    # A problem about one rank alone is that this rank could not begin, is gone, or did not answer.
    ending = None
    if source is None and destination is not None:
        ending = destinations.get(destination)
    elif destination is None and source is not None:
        ending = sources.get(source)
    return Problem(found["kind"], f"{what} ({ending})" if ending else what, source, destination)
