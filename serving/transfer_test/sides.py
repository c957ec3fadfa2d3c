"""One side of a test: the processes of its ranks, from their start to their end, and what they leave behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, Final

from serving.transfer_test import agent, lanes
from serving.transfer_test.conduct import Conduct, Wanted, problem_of
from serving.transfer_test.peers import Broken, Peers, Who, gather, listen
from serving.transfer_test.rank import DESTINATION, WORD_VARIABLE
from serving.transfer_test.report import SCHEMA_VERSION, Report

RANK_MODULE: Final = "serving.transfer_test.rank"

_END_WITHIN_S: Final = 10.0
_KILLED_WITHIN_S: Final = 5.0
_OVERTIME_S: Final = 20.0
"""So much longer than the test a rank may live, for its end."""

_LAST_LINES: Final = 5


@dataclass(frozen=True)
class Side:
    """What one side is given. `meet` is where the source side listens; `rank_argv` starts a rank."""

    name: str
    devices: tuple[str, ...]
    meet: tuple[str, int]
    token: str
    join_within_s: float
    within_s: float
    rank_argv: tuple[str, ...] = (sys.executable, "-m", RANK_MODULE)


@dataclass
class RankProcess:
    """The process of one rank, and the files that it writes."""

    who: Who
    process: "subprocess.Popen[bytes]"
    output: Path
    ucx_log: Path

    def ending(self) -> str:
        """How it ended, in words."""
        status = self.process.poll()
        if status is None:
            return "is still there"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def log(self) -> str:
        """What UCX wrote."""
        return self.ucx_log.read_text(errors="replace") if self.ucx_log.is_file() else ""

    def last_words(self) -> list[str]:
        """The end of what it printed."""
        lines = self.output.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-_LAST_LINES:]


@contextmanager
def running(side: Side) -> Iterator[Sequence[RankProcess]]:
    """Start the ranks of a side. Leaving waits for their end a little, and then makes it."""
    with tempfile.TemporaryDirectory(prefix="dsv4-transfer-") as folder:
        ranks: list[RankProcess] = []
        try:
            ranks.extend(_started(side, Path(folder)))
            yield ranks
        finally:
            _end(ranks, 0.0)


def _started(side: Side, folder: Path) -> Iterator[RankProcess]:
    for number, device in enumerate(side.devices):
        output, ucx_log = folder / f"{number}.txt", folder / f"{number}.ucx"
        environment = {**os.environ, **lanes.ENVIRONMENT, "UCX_LOG_FILE": str(ucx_log), WORD_VARIABLE: side.token}
        argv = [
            *side.rank_argv,
            *("--side", side.name, "--rank", str(number), "--device", device),
            *("--meet", f"{side.meet[0]}:{side.meet[1]}", "--join-within", str(side.join_within_s)),
            *("--end-within", str(side.within_s + _OVERTIME_S)),
        ]
        with output.open("wb") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        yield RankProcess(Who(side.name, number), process, output, ucx_log)


def _end(ranks: Sequence[RankProcess], within_s: float) -> None:
    """Wait for all of them, and kill what is left."""
    end = time.monotonic() + within_s
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            try:
                rank.process.wait(_KILLED_WITHIN_S)
            except subprocess.TimeoutExpired:
                # Stuck in the kernel, in a driver for instance: it ends when that lets go of it.
                continue


def run_destination(side: Side) -> dict[str, Any]:
    """Have the ranks there until they have ended. Returns how each did."""
    with running(side) as ranks:
        end = time.monotonic() + side.join_within_s + side.within_s
        while time.monotonic() < end and all(rank.process.poll() is None for rank in ranks):
            time.sleep(0.05)
        # They end together, with the source side: one that does not then hangs.
        _end(ranks, _END_WITHIN_S)
        return {"schema_version": SCHEMA_VERSION, "side": DESTINATION, "ranks": endings(ranks)}


def endings(ranks: Sequence[RankProcess]) -> list[dict[str, Any]]:
    """How each rank's process ended, its last words where that was not as it should, and what UCX calls errors."""
    return [
        {
            "rank": rank.who.rank,
            "pid": rank.process.pid,
            "status": rank.process.poll(),
            "ending": rank.ending(),
            "last_words": rank.last_words() if rank.process.poll() != 0 else [],
            "ucx_errors": lanes.complaints(rank.log())[:_LAST_LINES],
        }
        for rank in ranks
    ]


def run_source(side: Side, others: int, wanted: Wanted) -> dict[str, Any]:
    """The test itself: `others` is how many ranks the other side has. Returns its report."""
    report = Report(nixl=agent.version())
    try:
        with closing(listen(side.meet)) as server, running(side) as ranks:
            try:
                _conduct(side, server, ranks, others, wanted, report)
            except Broken as error:
                report.problems.append(problem_of(error))
                _end(ranks, 0.0)
            return {**report.as_data(), "sources": endings(ranks)}
    except Broken as error:
        report.problems.append(problem_of(error))
        return {**report.as_data(), "sources": []}


def _conduct(
    side: Side, server: socket, ranks: Sequence[RankProcess], others: int, wanted: Wanted, report: Report
) -> None:
    expected = [rank.who for rank in ranks] + [Who(DESTINATION, number) for number in range(others)]
    peers = Peers(gather(server, expected, side.token, side.join_within_s))
    report.ranks = [
        {"side": p.who.side, "rank": p.who.rank, "pid": p.pid, "host": p.host, "device": p.device}
        for p in (*peers.sources, *peers.destinations)
    ]
    conduct = Conduct(peers, wanted, report, time.monotonic() + side.within_s)
    try:
        conduct.run()
    finally:
        peers.close()
    _end(ranks, _END_WITHIN_S)
    for rank in ranks:
        _read_log(rank, conduct, report, max(wanted.sizes))


def _read_log(rank: RankProcess, conduct: Conduct, report: Report, size: int) -> None:
    told = lanes.read(rank.log())
    report.ucx = told.version or report.ucx
    for destination, lane in lanes.lanes(told, conduct.windows.get(rank.who.rank, {}), size).items():
        report.lanes[rank.who.rank, destination] = lane


def end_by_exception() -> None:
    """Have SIGTERM unwind this process, so that its ranks and files go with it."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
