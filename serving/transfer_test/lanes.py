"""Which way UCX really took, as it says itself when it ends (UCX_PROTO_INFO=used, UCX_LOG_LEVEL=info).

It prints one table for each kind of operation and each configuration of connections, with how often each row was used.
A configuration has a number; a line names it when a connection is the first to have it, with its time. So a
destination's configuration is known from when it was met. Read with UCX 1.23.0.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ENVIRONMENT: Final = {"UCX_PROTO_INFO": "used", "UCX_LOG_LEVEL": "info"}

_LINE = re.compile(r"^\[(\d+\.\d+)\]\s+\[[^\]]*\]\s+(.*?)\s*$")
_NEW = re.compile(r"UCX\s+INFO\s+\S+ (int(?:ra|er)-node cfg#\d+) ")
_TITLE = re.compile(r"^\| \S+ ((?:self|int(?:ra|er)-node) cfg#\d+)\s*\|$")
_WRITE = re.compile(r"^\| remote memory write by ")
_OPERATION = re.compile(r"^\| \S.* by ucp_\w+")
_ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*(\d+[KMGT]?)(?:\.\.(\d+[KMGT]?|inf))?\s*\|(.*)\|(.*)\|$")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRANSPORT = re.compile(r"\b([a-z][a-z0-9_]*/[\w:./-]+)")
_COMPLAINT = re.compile(r"UCX\s+ERROR\s+(.*)")
_VERSION = re.compile(r"UCX\s+INFO\s+Version (\S+)")


@dataclass(frozen=True)
class Row:
    """One row of a table about writes: how often it was used, for which sizes, and by which transports."""

    configuration: str
    count: int
    low: int
    high: int | None
    transports: tuple[str, ...]

    def covers(self, size: int) -> bool:
        """Whether a write of that many bytes goes by it."""
        return self.low <= size and (self.high is None or size <= self.high)


@dataclass(frozen=True)
class Told:
    """What a log says: when each configuration first came up (Unix time), the rows of writes, and UCX's version."""

    configurations: tuple[tuple[float, str], ...]
    rows: tuple[Row, ...]
    version: str | None


def read(log: str) -> Told:
    """Raises nothing: what is not understood is not there."""
    configurations: list[tuple[float, str]] = []
    rows: list[Row] = []
    version: str | None = None
    configuration, is_write = "", False
    for raw in log.splitlines():
        matched = _LINE.match(raw)
        if matched is None:
            continue
        moment, text = float(matched[1]), matched[2]
        if found := _VERSION.search(text):
            version = found[1]
        elif found := _NEW.search(text):
            configurations.append((moment, found[1]))
        elif found := _TITLE.match(text):
            configuration, is_write = found[1], False
        elif _OPERATION.match(text):
            is_write = bool(_WRITE.match(text))
        elif is_write and (found := _ROW.match(text)):
            low = _bytes(found[2])
            high = low if found[3] is None else None if found[3] == "inf" else _bytes(found[3])
            transports = tuple(dict.fromkeys(_TRANSPORT.findall(f"{found[4]} {found[5]}")))
            rows.append(Row(configuration, int(found[1]), low, high, transports))
    return Told(tuple(configurations), tuple(rows), version)


def complaints(log: str) -> list[str]:
    """What UCX calls an error, each once."""
    lines = (_LINE.match(raw) for raw in log.splitlines())
    found = (_COMPLAINT.search(line[2]) for line in lines if line)
    return list(dict.fromkeys(complaint[1] for complaint in found if complaint))


def _bytes(word: str) -> int:
    unit = _UNITS.get(word[-1])
    return int(word) if unit is None else int(word[:-1]) * unit


def lanes(told: Told, windows: Mapping[int, tuple[float, float]], size: int) -> dict[int, tuple[str, ...] | None]:
    """The transports by which writes of that size reached each destination; None where it cannot be told.

    `windows` are when each destination was met and first written to, in the order in which that was done.
    """
    by_configuration: dict[str, set[tuple[str, ...]]] = {}
    for row in told.rows:
        if row.count and row.covers(size):
            by_configuration.setdefault(row.configuration, set()).add(row.transports)
    found: dict[int, tuple[str, ...] | None] = {}
    seen: list[str] = []
    for destination, (began, ended) in windows.items():
        here = [name for moment, name in told.configurations if began <= moment <= ended]
        seen += here
        # A connection like an earlier one has its configuration, and no line.
        possible = set(here or seen) & by_configuration.keys()
        ways = [by_configuration[name] for name in possible]
        found[destination] = _only(ways) if ways else None
    return found


def _only(ways: Sequence[set[tuple[str, ...]]]) -> tuple[str, ...] | None:
    """The one way that they all are; None for none or several."""
    all_ways = set().union(*ways)
    return all_ways.pop() if len(all_ways) == 1 else None
