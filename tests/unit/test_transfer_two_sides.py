"""Real NIXL writes between processes: over UCX TCP, in host memory, as the engine without a GPU does it."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.transfer_test.conduct import Wanted
from serving.transfer_test.rank import DESTINATION, SOURCE
from serving.transfer_test.sides import Side, run_destination, run_source
from tests.faulty_rank import VARIABLE
from tests.sshd import free_port

ROOT = Path(__file__).parents[2]
FAULTY = (sys.executable, "-m", "tests.faulty_rank")
KB, MB = 1 << 10, 1 << 20


def of_two_sides(
    ranks: int, sizes: tuple[int, ...], rank_argv: tuple[str, ...] | None = None, repeats: int = 2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of the source side and of the destination side."""
    meet = ("127.0.0.1", free_port())
    more = {} if rank_argv is None else {"rank_argv": rank_argv}
    sides = [Side(name, ("cpu",) * ranks, meet, "known", 20.0, 30.0, **more) for name in (SOURCE, DESTINATION)]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run_destination, sides[1])
        source = run_source(sides[0], ranks, Wanted(sizes, sizes[-1], repeats, transfer_within_s=5.0))
        return source, other.result(30)


def test_what_every_rank_writes_to_every_other_arrives_by_tcp() -> None:
    report, other = of_two_sides(2, (4 * KB, MB, 8 * MB))
    assert (report["problems"], report["untested"]) == ([], [])
    assert [(pair["source"], pair["destination"], pair["lane"]) for pair in report["pairs"]] == [
        (source, destination, ("tcp/lo",)) for source in (0, 1) for destination in (0, 1)
    ]
    assert all(
        [one["size_bytes"] for one in pair["sizes"]] == [4 * KB, MB, 8 * MB]
        and all(one["gb_per_s"] > 0 and len(one["seconds"]) >= 1 for one in pair["sizes"])
        for pair in report["pairs"]
    )
    assert [(one["writes"], one["size_bytes"]) for one in report["concurrent"]] == [(4, 4 * MB)] * 3
    assert [rank["ending"] for rank in (*report["sources"], *other["ranks"])] == ["exited with status 0"] * 4
    assert report["ucx"] is not None


def test_the_largest_size_arrives_too() -> None:
    report, _ = of_two_sides(1, (256 * MB,), repeats=1)
    assert report["problems"] == []
    (pair,) = report["pairs"]
    assert pair["sizes"][0]["size_bytes"] == 256 * MB


def test_a_wrong_word_is_seen_and_said_to_be_of_which_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "corrupt")
    monkeypatch.chdir(ROOT)
    report, _ = of_two_sides(1, (4 * KB, 64 * KB), FAULTY)
    (problem,) = report["problems"]
    assert (problem["kind"], problem["source"], problem["destination"], problem["size_bytes"]) == (
        *("corrupt", 0, 0),
        4 * KB,
    )
    assert "1 words are wrong" in problem["what"]


def test_a_write_where_nothing_should_be_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "foreign")
    monkeypatch.chdir(ROOT)
    report, _ = of_two_sides(1, (4 * KB, 64 * KB), FAULTY)
    (problem,) = report["problems"]
    assert problem["kind"] == "corrupt"
    assert "outside of what was written" in problem["what"]
    assert "at byte 0: zeros" in problem["what"]


def test_a_peer_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "dead")
    monkeypatch.chdir(ROOT)
    report, other = of_two_sides(1, (4 * KB, 64 * KB), FAULTY)
    (rank,) = other["ranks"]
    (problem,) = report["problems"]
    assert (problem["kind"], problem["destination"]) == ("failed", 0)
    assert f"destination rank 0 (pid {rank['pid']} on {os.uname().nodename}) is gone, while writing" in problem["what"]
    assert rank["ending"] == "was ended by SIGKILL"
    assert report["untested"] == ["all pairs at once"]
