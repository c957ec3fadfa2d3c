"""Reading /proc: the text of the kernel, and real processes, sockets and shared memory of this machine."""

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl import procfs
from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.procfs import Process
from dsv4ctl.supervisors.shepherd.processes import parse_stat
from dsv4ctl.waiting import wait_until

HOST = LocalHost()

pids = st.integers(1, 2**22)
comms = st.binary(max_size=15).filter(lambda name: b"\0" not in name) | st.sampled_from(
    [b"", b")", b"(", b") S 1", b"a) R 1 1 1 1 1", b"x\n1 (y) S 1 1", b"\n", b" ", b")) ("]
)
records = st.builds(
    Process,
    pid=pids,
    ppid=st.integers(0, 2**22),
    pgid=st.integers(-1, 2**22),
    session=st.integers(0, 2**22),
    start_ticks=st.integers(0, 2**63),
    state=st.sampled_from("RSDZTtXIP"),
    comm=comms.map(lambda name: name.decode(errors="backslashreplace")),
    threads=st.integers(0, 10_000),
)


def written(process: Process, comm: bytes) -> bytes:
    """The line as the kernel writes it: 52 fields (proc_pid_stat(5))."""
    fields = ["0"] * 49
    fields[0:3] = [str(process.ppid), str(process.pgid), str(process.session)]
    fields[4] = "-1"
    fields[16], fields[18] = str(process.threads), str(process.start_ticks)
    return b"%d (%s) %s %s\n" % (process.pid, comm, process.state.encode(), " ".join(fields).encode())


@given(st.lists(st.tuples(records, comms), max_size=5, unique_by=lambda pair: pair[0].pid))
def test_stats_are_read_back_whatever_a_process_calls_itself(pairs: list[tuple[Process, bytes]]) -> None:
    found = procfs.parse_stats(b"".join(written(process, comm) for process, comm in pairs))
    assert list(found) == [process.pid for process, _ in pairs]
    for process, comm in pairs:
        assert found[process.pid].comm == comm.decode(errors="backslashreplace")
        assert (found[process.pid].ppid, found[process.pid].session) == (process.ppid, process.session)
        assert (found[process.pid].start_ticks, found[process.pid].state) == (process.start_ticks, process.state)


@given(records, comms)
def test_the_shepherd_reads_a_stat_as_we_do(process: Process, comm: bytes) -> None:
    text = written(process, comm)
    ours, theirs = procfs.parse_stats(text)[process.pid], parse_stat(text)
    assert (ours.pid, ours.ppid, ours.session, ours.start_ticks, ours.alive) == theirs


@given(st.binary(min_size=1, max_size=60))
def test_what_is_no_stat_is_refused(text: bytes) -> None:
    with pytest.raises(OperationFailed, match="cannot read"):
        procfs.parse_stats(text)


def test_this_process_is_seen_as_it_is() -> None:
    me = procfs.processes(HOST)[os.getpid()]
    assert (me.ppid, me.pgid, me.session) == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert me.alive
    assert 0 <= procfs.age_s(me, procfs.uptime_s(HOST)) < procfs.uptime_s(HOST)
    assert procfs.boot_id(HOST) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    wait_until(lambda: procfs.processes(HOST)[child.pid].state == "Z", deadline_s=5, what="the zombie")
    assert not procfs.processes(HOST)[child.pid].alive
    child.wait()
    assert child.pid not in procfs.processes(HOST)


def test_descendants_are_found_over_generations() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; true'; true"], stdout=subprocess.DEVNULL) as top:
        below = wait_until(
            lambda: found if len(found := procfs.descendants(procfs.processes(HOST), [top.pid])) == 2 else None,
            deadline_s=5,
            what="two generations",
        )
        assert top.pid not in below
        # From the top, so that none goes on to its own end when the one below it is gone.
        for pid in (top.pid, *sorted(below)):
            os.kill(pid, 9)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with an odd environment and odd arguments."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "a b", "", "c=d"],
        env={"EMPTY": "", "EQUALS": "a=b", "LINES": "a\nb"},
    ) as process:
        yield process
        process.kill()


def test_environment_and_arguments_are_read_back_exactly(sleeper: "subprocess.Popen[bytes]") -> None:
    assert procfs.environ(HOST, sleeper.pid) == {"EMPTY": "", "EQUALS": "a=b", "LINES": "a\nb"}
    assert procfs.cmdline(HOST, sleeper.pid) == (sys.executable, "-c", "import time; time.sleep(60)", "a b", "", "c=d")


def test_a_process_that_is_gone_is_no_file() -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(FileNotFoundError):
        procfs.environ(HOST, child.pid)
    with pytest.raises(FileNotFoundError):
        procfs.cmdline(HOST, child.pid)


def test_an_environment_that_was_written_over_is_an_error_not_an_empty_one() -> None:
    overwrite = "import setproctitle, time; setproctitle.setproctitle('title'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", overwrite], env={"A": "1"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OperationFailed, match="cannot be read back") as error:
            procfs.environ(HOST, process.pid)
        assert error.value.hint == "start it with SPT_NOENV=1"
        assert procfs.cmdline(HOST, process.pid) == ("title",)
        process.kill()


def test_listening_sockets_with_their_holders() -> None:
    with socket.socket() as v4, socket.socket(socket.AF_INET6) as v6, socket.socket() as connected:
        v4.bind(("127.0.0.1", 0))
        v4.listen()
        v6.bind(("::1", 0))
        v6.listen()
        connected.connect(v4.getsockname())
        # The kernel may give both the same number.
        found = {(listener.port, listener.family): listener for listener in procfs.listeners(HOST)}
        port, port6 = v4.getsockname()[1], v6.getsockname()[1]
        assert found[port, "ipv4"] == procfs.Listener(port, "127.0.0.1", "ipv4", (os.getpid(),))
        assert found[port6, "ipv6"].address == "::1"
        assert found[port6, "ipv6"].pid == os.getpid()
        assert (connected.getsockname()[1], "ipv4") not in found


def test_a_holder_that_may_not_be_looked_up_is_none() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        found = {one.port: one for one in procfs.listeners(AsNobody())}
        assert found[listener.getsockname()[1]].pid is None


class AsNobody(LocalHost):
    """This machine as another user sees it."""

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        return super().run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv], **options)


@pytest.fixture
def segment() -> Iterator[Path]:
    """A file of one page in shared memory."""
    path = Path(f"/dev/shm/dsv4 test-{os.getpid()}")
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    yield path
    path.unlink(missing_ok=True)


def listed(host: LocalHost, path: Path) -> procfs.ShmFile:
    return next(file for file in procfs.shm_listing(host) if file.path == str(path))


def mine(segment: Path) -> tuple[procfs.ShmSegment, ...]:
    """The one of this test: another in this process may have made a semaphore."""
    return tuple(found for found in procfs.shm_segments(HOST, [os.getpid()]) if found.path == str(segment))


def test_shared_memory_that_is_open_mapped_or_left_over(segment: Path) -> None:
    unused = listed(HOST, segment)
    assert (unused.size_bytes, unused.owner_uid, unused.pids) == (mmap.PAGESIZE, os.getuid(), ())
    assert not unused.in_use  # None in a container whose first process even root may not look into
    with segment.open("r+b") as file:
        assert listed(HOST, segment).pids == (os.getpid(),)
        mapping = mmap.mmap(file.fileno(), 0)
    assert listed(HOST, segment).in_use is True
    assert mine(segment) == (procfs.ShmSegment(str(segment), (os.getpid(),), deleted=False),)
    assert procfs.shm_segments(HOST, [1]) == ()
    segment.unlink()
    assert mine(segment) == (procfs.ShmSegment(str(segment), (os.getpid(),), deleted=True),)
    mapping.close()
    assert mine(segment) == ()


def test_who_may_not_look_into_others_does_not_call_shared_memory_unused(segment: Path) -> None:
    with segment.open("rb"):
        file = listed(AsNobody(), segment)
        assert (file.pids, file.in_use) == ((), None)
