"""Cutting what a follower writes into lines."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts.base import FileLog, JournalLog
from dsv4ctl.hosts.follow import FOLLOWING, MAX_LINE, Lines, describe_source, follower_argv
from dsv4ctl.hosts.guard import NOT_STARTED, STARTED


class Script:
    """A follower that has already written what it will: a list of reads."""

    def __init__(self, *reads: bytes | None, stderr: bytes = b"") -> None:
        self.reads = list(reads)
        self.said = stderr
        self.closed = False

    def read(self, timeout_s: float) -> bytes | None:
        return self.reads.pop(0) if self.reads else None

    def stderr(self) -> bytes:
        return self.said

    def close(self) -> None:
        self.closed = True


def lines_of(*reads: bytes | None) -> Lines:
    return Lines(Script(*reads), "gpu1: log", clock=lambda: 0.0)


def rest(lines: Lines) -> list[str]:
    return list(iter(lambda: lines.readline(0), None))


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    st.lists(st.integers(0, 400), max_size=10),
    st.binary(max_size=30).filter(lambda noise: b"\x1e" not in noise),
)
@settings(derandomize=True)
def test_any_cut_of_the_stream_gives_the_same_lines(written: list[bytes], cuts: list[int], noise: bytes) -> None:
    stream = noise + STARTED + FOLLOWING + b"".join(line + b"\n" for line in written) + b"unfinished"
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reads = [stream[a:b] for a, b in itertools.pairwise(edges)]
    found = rest(lines_of(*reads).start(1.0))
    assert found == [line.decode(errors="backslashreplace") for line in written]


def test_no_line_yet() -> None:
    lines = lines_of(FOLLOWING + b"half", None, b" and half\n").start(1.0)
    assert lines.readline(0) is None
    assert lines.readline(0) == "half and half"


def test_a_line_without_end_comes_in_pieces() -> None:
    lines = lines_of(FOLLOWING, b"x" * MAX_LINE, b"yz\n").start(1.0)
    assert lines.readline(0) == "x" * MAX_LINE
    assert lines.readline(0) == "yz"


def test_a_follower_that_does_not_start() -> None:
    with pytest.raises(DeadlineExceeded, match="gpu1: log"):
        lines_of(b"welcome\n").start(1.0)


def test_a_follower_that_ends() -> None:
    script = Script(b"", stderr=STARTED + b"tail: gone\n")
    with pytest.raises(OperationFailed, match="tail: gone"):
        Lines(script, "gpu1: log").readline(1)


def test_a_follower_that_cannot_be_started() -> None:
    script = Script(b"", stderr=b"noise\n" + STARTED + b"dsv4ctl-guard: 9: exec: journalctl: not found\n" + NOT_STARTED)
    with pytest.raises(OperationFailed) as caught:
        Lines(script, "gpu1: log").start(1)
    assert caught.value.why == "journalctl: not found"


def test_leaving_closes() -> None:
    script = Script()
    with Lines(script, "gpu1: log"):
        assert not script.closed
    assert script.closed


def test_what_runs_on_the_host() -> None:
    assert follower_argv(FileLog("-x"), 3)[-2:] == ["3", "./-x"]
    assert follower_argv(JournalLog("dsv4-x.service"), 0)[-2:] == ["0", "--user-unit=dsv4-x.service"]
    assert follower_argv(JournalLog("dsv4-x.service", user=False), 0)[-1] == "--unit=dsv4-x.service"
    assert describe_source(JournalLog("u", user=True)) == "the journal of user unit u"
