"""What a test found, as the values that become its JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

SCHEMA_VERSION: Final = 1
_GB: Final = 1e9


@dataclass(frozen=True)
class Single:
    """Writes of one size between two ranks, one after the other: the seconds that each took."""

    source: int
    destination: int
    size_bytes: int
    seconds: tuple[float, ...]

    @property
    def gb_per_s(self) -> float:
        """Of the median write; 10^9 bytes a second."""
        return self.size_bytes / median(self.seconds) / _GB


@dataclass(frozen=True)
class Round:
    """One moment in which every source wrote to every destination: all bytes, first post to last end."""

    size_bytes: int
    writes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        """All of them together."""
        return self.size_bytes * self.writes / self.seconds / _GB


@dataclass(frozen=True)
class Problem:
    """What went wrong. `kind`: corrupt (the content was not what was written), failed, or unknown (not tried)."""

    kind: str
    what: str
    source: int | None = None
    destination: int | None = None
    size_bytes: int | None = None


@dataclass
class Report:
    """Grows while the test runs."""

    ranks: list[dict[str, Any]] = field(default_factory=list)
    backend: str | None = None
    nixl: str | None = None
    ucx: str | None = None
    first: dict[tuple[int, int], float] = field(default_factory=dict)
    singles: list[Single] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    lanes: dict[tuple[int, int], tuple[str, ...] | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "side": "source",
            "backend": self.backend,
            "nixl": self.nixl,
            "ucx": self.ucx,
            "ranks": self.ranks,
            "pairs": [
                {
                    "source": source,
                    "destination": destination,
                    "first_write_s": first_s,
                    "lane": self.lanes.get((source, destination)),
                    "sizes": [
                        {"size_bytes": one.size_bytes, "seconds": one.seconds, "gb_per_s": one.gb_per_s}
                        for one in self.singles
                        if (one.source, one.destination) == (source, destination)
                    ],
                }
                for (source, destination), first_s in self.first.items()
            ],
            "concurrent": [{**asdict(one), "gb_per_s": one.gb_per_s} for one in self.rounds],
            "problems": [asdict(problem) for problem in self.problems],
            "untested": self.untested,
        }


def size_words(size_bytes: int) -> str:
    """A size as people say it: 4 KB, 256 MB (powers of two)."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} bytes"


def lines(data: dict[str, Any]) -> Sequence[str]:
    """A report for a person."""
    found = [
        f"backend {data['backend'] or 'unknown'}, NIXL {data['nixl'] or 'unknown'}, UCX {data['ucx'] or 'unknown'}"
    ]
    for pair in data["pairs"]:
        lane = "unknown" if pair["lane"] is None else ", ".join(pair["lane"])
        speeds = ", ".join(f"{size_words(one['size_bytes'])} {one['gb_per_s']:.3f}" for one in pair["sizes"])
        found.append(f"rank {pair['source']} to rank {pair['destination']} by {lane}, GB/s: {speeds or 'none'}")
    found += [
        f"{one['writes']} writes of {size_words(one['size_bytes'])} at once: {one['gb_per_s']:.3f} GB/s"
        for one in data["concurrent"]
    ]
    found += [f"{problem['kind']}: {problem['what']}" for problem in data["problems"]]
    found += [f"not tested: {what}" for what in data["untested"]]
    return found
