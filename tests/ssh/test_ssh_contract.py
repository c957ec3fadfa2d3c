"""Every promise of the `Host` protocol, on this machine, over SSH, and through a jump host."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsv4ctl.errors import DeadlineExceeded, OperationFailed, UsageError
from dsv4ctl.hosts.base import FileLog, Host, LogStream
from dsv4ctl.waiting import wait_until
from tests.sshd import children, processes
from tests.web import Web

AWKWARD = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "\\\\",
    "$HOME",
    "`id`",
    "*",
    "a\nb",
    "\t",
    "!x",
    "~",
    "#",
    "--",
    "-n",
    "é中",
    "\x7f",
]


def lines(stream: LogStream, count: int, timeout_s: float = 10) -> list[str]:
    """The next lines; fails when they do not come."""
    found: list[str] = []
    for _ in range(count):
        line = stream.readline(timeout_s)
        assert line is not None, f"only {found} came"
        found.append(line)
    return found


def is_tail(pid: int) -> bool:
    """Whether a process is the reader of a follower, and not the one before it that brings the old lines and ends."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0] == b"tail" and b"-f" in words
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestRun:
    def test_output_status_and_duration(self, host: Host) -> None:
        done = host.run(["sh", "-c", "echo out; echo err >&2"], deadline_s=10)
        assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 0)
        assert done.argv == ("sh", "-c", "echo out; echo err >&2")
        assert 0 < done.duration_s < 10
        assert done.text == "out\n"

    def test_arguments_arrive_as_they_are(self, host: Host) -> None:
        done = host.run(["printf", "%s\\0", *AWKWARD], deadline_s=10)
        assert done.stdout.decode().split("\0")[:-1] == AWKWARD

    def test_environment_is_added_and_arrives_as_it_is(self, host: Host) -> None:
        env = {f"DSV4_TEST_{number}": value for number, value in enumerate(AWKWARD)}
        done = host.run(["env", "-0"], env=env, deadline_s=10)
        seen = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
        assert env.items() <= seen.items()
        assert "PATH" in seen

    def test_environment_of_the_guards_own_names(self, host: Host) -> None:
        env = {"guard_input": "x", "guard_lease": "y", "guard_main": "z", "PATH": "/nowhere"}
        done = host.run(["/bin/sh", "-c", 'echo "$guard_input$guard_lease$guard_main$PATH"'], env=env, deadline_s=10)
        assert done.text == "xyz/nowhere\n"

    def test_working_directory(self, host: Host, tmp_path: Path) -> None:
        there = tmp_path / "a b'c"
        there.mkdir()
        assert host.run(["pwd", "-P"], cwd=str(there), deadline_s=10).text == f"{there}\n"

    @pytest.mark.parametrize("status", [1, 126, 127, 130, 137, 255])
    def test_status_is_the_commands_own(self, host: Host, status: int) -> None:
        assert host.run(["sh", "-c", f"exit {status}"], deadline_s=10, check=False).returncode == status

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP])
    def test_death_by_signal_is_negative(self, host: Host, number: signal.Signals) -> None:
        done = host.run(["sh", "-c", f"kill -{number.value} $$"], deadline_s=10, check=False)
        assert done.returncode == -number

    def test_failure_names_host_command_status_and_the_last_lines(self, host: Host) -> None:
        script = "for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3"
        with pytest.raises(OperationFailed) as caught:
            host.run(["sh", "-c", script], deadline_s=10)
        assert host.name in caught.value.what
        assert "status 3" in caught.value.what
        assert caught.value.why == "line 3\nline 4\nline 5\nline 6\nline 7"

    def test_failure_hides_secrets(self, host: Host) -> None:
        with pytest.raises(OperationFailed) as caught:
            host.run(["false", "--api-key", "hunter2"], deadline_s=10)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("program", ["dsv4-no-such-program", "/no/such/program", "/etc/passwd", "/tmp", "cd "])
    def test_a_program_that_cannot_run_is_named(self, host: Host, program: str) -> None:
        with pytest.raises(OperationFailed) as caught:
            host.run([program], deadline_s=10, check=False)
        assert program in str(caught.value)
        assert "cannot start" in caught.value.what

    def test_a_missing_working_directory_is_named(self, host: Host) -> None:
        with pytest.raises(OperationFailed, match="/no/such/directory"):
            host.run(["true"], cwd="/no/such/directory", deadline_s=10)

    def test_what_no_process_can_be_given(self, host: Host) -> None:
        with pytest.raises(UsageError):
            host.run([], deadline_s=10)
        with pytest.raises(UsageError):
            host.run(["echo", "a\0b"], deadline_s=10)
        with pytest.raises(UsageError, match="A B"):
            host.run(["true"], env={"A B": "1"}, deadline_s=10)

    @pytest.mark.parametrize("size", [0, 1, 5_000_000])
    def test_binary_input_and_output(self, host: Host, size: int) -> None:
        data = os.urandom(size)
        assert host.run(["cat"], stdin=data, deadline_s=30).stdout == data

    def test_input_with_environment(self, host: Host) -> None:
        done = host.run(["sh", "-c", 'echo "$A"; cat'], stdin=b"in\n", env={"A": "a'b\n"}, deadline_s=10)
        assert done.text == "a'b\n\nin\n"

    def test_input_that_nobody_reads(self, host: Host) -> None:
        assert host.run(["true"], stdin=b"x" * 10_000_000, deadline_s=20).returncode == 0

    def test_without_input_a_reader_sees_the_end(self, host: Host) -> None:
        assert host.run(["cat"], deadline_s=10).stdout == b""

    def test_a_hundred_megabytes(self, host: Host) -> None:
        script = "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2"
        done = host.run(["sh", "-c", script], deadline_s=60)
        assert (len(done.stdout), len(done.stderr)) == (50_000_000, 50_000_000)

    @pytest.mark.parametrize("stdin", [b"", b"input"])
    def test_the_deadline_kills_the_command_and_its_children(self, host: Host, stdin: bytes, tmp_path: Path) -> None:
        mark = f"4{time.monotonic_ns() % 10**9:09d}"
        # `timeout` moves to a process group of its own; the deaf shell ignores SIGTERM.
        script = f"timeout 999 sleep {mark} & sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' & sleep {mark}"
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            host.run(["sh", "-c", script], stdin=stdin, deadline_s=0.5)
        assert time.monotonic() - started < 6
        assert "killed" in str(caught.value)
        assert host.name in str(caught.value)
        # The guard itself goes last.
        wait_until(lambda: not processes(mark), deadline_s=3, what="the children to be gone", interval_s=0.02)

    @pytest.mark.parametrize("stdin", [b"", b"input"])
    def test_what_is_left_in_the_background_lives_on(self, host: Host, stdin: bytes) -> None:
        done = host.run(["sh", "-c", "sleep 30 </dev/null >/dev/null 2>&1 & echo $!"], stdin=stdin, deadline_s=10)
        pid = int(done.text)
        # Longer than the guard's watch takes to see that its command has gone.
        with pytest.raises(DeadlineExceeded):
            wait_until(
                lambda: not Path(f"/proc/{pid}").exists(), deadline_s=1.2 if stdin else 0.5, what="it to die by mistake"
            )
        os.kill(pid, signal.SIGKILL)

    def test_nothing_of_the_guard_is_left(self, host: Host) -> None:
        mark = f"mark-{time.monotonic_ns()}"
        host.run(["sh", "-c", "true", mark], deadline_s=10)
        host.run(["sh", "-c", "cat", mark], stdin=b"x", deadline_s=10)
        wait_until(lambda: not processes(mark), deadline_s=5, what="the guards to end")

    def test_fifty_threads(self, host: Host) -> None:
        with ThreadPoolExecutor(50) as pool:
            results = pool.map(lambda n: host.run(["sh", "-c", f"sleep 0.05; echo {n}"], deadline_s=30).text, range(50))
            assert list(results) == [f"{number}\n" for number in range(50)]


class TestRead:
    def test_whole_part_and_end(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "file"
        data = bytes(range(256)) * 100
        path.write_bytes(data)
        assert host.read(str(path)) == data
        assert host.read(str(path), limit=0) == b""
        assert host.read(str(path), limit=7) == data[:7]
        assert host.read(str(path), offset=300) == data[300:]
        assert host.read(str(path), offset=300, limit=5) == data[300:305]
        assert host.read(str(path), offset=-9) == data[-9:]
        assert host.read(str(path), offset=-9, limit=4) == data[-9:-5]
        assert host.read(str(path), offset=-99_999, limit=4) == data[:4]
        assert host.read(str(path), offset=99_999) == b""

    def test_an_empty_file(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert host.read(str(tmp_path / "empty")) == b""
        assert host.read(str(tmp_path / "empty"), offset=-5, limit=2) == b""

    def test_awkward_names(self, host: Host, tmp_path: Path) -> None:
        for name in ["-", "-n", "a b", "'", "\\", "*", "\n"]:
            (tmp_path / name).write_text(name)
            assert host.read(str(tmp_path / name)) == name.encode()

    def test_proc(self, host: Host) -> None:
        pid = os.getpid()
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert host.read(f"/proc/{pid}/environ") == environ
        assert host.read(f"/proc/{pid}/environ", offset=3, limit=9) == environ[3:12]
        assert host.read(f"/proc/{pid}/environ", offset=-9) == environ[-9:]
        assert host.read(f"/proc/{pid}/stat").startswith(f"{pid} (".encode())

    def test_a_missing_file(self, host: Host, tmp_path: Path) -> None:
        for path in (tmp_path / "missing", Path("/proc/999999999/stat")):
            with pytest.raises(FileNotFoundError) as caught:
                host.read(str(path), limit=5)
            assert str(path) in str(caught.value)
            assert host.name in str(caught.value)

    def test_a_forbidden_file(self, host: Host) -> None:
        # The kernel's own permission check: a switch that can only be written, also by root.
        with pytest.raises(PermissionError, match="compact_memory"):
            host.read("/proc/sys/vm/compact_memory")

    def test_a_directory(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError, match=host.name):
            host.read(str(tmp_path))


class TestWrite:
    @pytest.mark.parametrize("data", [b"", b"short", os.urandom(3_000_000)], ids=["empty", "short", "long"])
    def test_content_mode_and_parents(self, host: Host, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "a b" / "c'd" / "file"
        host.write(str(path), data, mode=0o640)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o7777 == 0o640
        assert path.parent.stat().st_mode & 0o7777 == 0o700
        assert path.parent.parent.stat().st_mode & 0o7777 == 0o700
        assert [entry.name for entry in path.parent.iterdir()] == ["file"]

    def test_secret_by_default(self, host: Host, tmp_path: Path) -> None:
        host.write(str(tmp_path / "file"), b"x")
        assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o600

    def test_a_reader_sees_the_old_or_the_new(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "file"
        versions = [letter * 200_000 for letter in (b"a", b"b")]
        path.write_bytes(versions[0])
        stop = threading.Event()
        seen: set[bytes] = set()

        def watch() -> None:
            while not stop.is_set():
                seen.add(path.read_bytes())

        reader = threading.Thread(target=watch)
        reader.start()
        for number in range(10):
            host.write(str(path), versions[number % 2])
        stop.set()
        reader.join()
        assert seen <= set(versions)

    def test_replaces_a_link_and_not_what_it_leads_to(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "other").write_text("untouched")
        (tmp_path / "link").symlink_to(tmp_path / "other")
        host.write(str(tmp_path / "link"), b"new")
        assert (tmp_path / "link").read_text() == "new"
        assert (tmp_path / "other").read_text() == "untouched"

    def test_a_directory_in_the_way(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        with pytest.raises(OperationFailed, match="there"):
            host.write(str(tmp_path / "there"), b"x")
        assert list((tmp_path / "there").iterdir()) == []
        assert [entry.name for entry in tmp_path.iterdir()] == ["there"]

    def test_a_file_where_a_directory_must_be(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OperationFailed, match="file/below"):
            host.write(str(tmp_path / "file" / "below"), b"x")

    def test_a_full_disk_leaves_the_old_file_and_nothing_else(self, host: Host, small_disk: Path) -> None:
        path = small_disk / "file"
        host.write(str(path), b"old")
        with pytest.raises(OperationFailed) as caught:
            host.write(str(path), b"x" * 2_000_000)
        assert "No space left on device" in str(caught.value)
        assert str(path) in str(caught.value)
        assert host.name in str(caught.value)
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in small_disk.iterdir()] == ["file"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("a file system to fill needs the right to mount one")
    yield mount
    subprocess.run(["umount", str(mount)], check=True, timeout=30)


class TestHttp:
    def test_the_hosts_loopback(self, host: Host, web: Web) -> None:
        with host.http(timeout_s=10) as client:
            assert client.get(f"{web.url}/").text == "hello"
            body = os.urandom(3_000_000)
            assert client.post(f"{web.url}/", content=body).content == body

    def test_one_connection_serves_many_requests(self, host: Host, web: Web) -> None:
        with host.http(timeout_s=10) as client:
            for _ in range(5):
                client.get(f"{web.url}/").raise_for_status()
        assert len(web.connections) == 1

    def test_no_proxy_of_the_environment(self, host: Host, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        with host.http(timeout_s=10) as client:
            assert client.get(f"{web.url}/").text == "hello"

    def test_fifty_threads(self, host: Host, web: Web) -> None:
        with host.http(timeout_s=30) as client, ThreadPoolExecutor(50) as pool:
            assert set(pool.map(lambda _: client.get(f"{web.url}/").text, range(100))) == {"hello"}


class TestFollow:
    def test_lines_as_they_come(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "a b'.log"
        path.write_text("1\n2\n3\n")
        with host.follow(FileLog(str(path)), tail_lines=2) as stream, path.open("a") as log:
            assert lines(stream, 2) == ["2", "3"]
            assert stream.readline(0.05) is None
            log.write("4\nhalf")
            log.flush()
            assert lines(stream, 1) == ["4"]
            assert stream.readline(0.05) is None
            log.write(" and half\n")
            log.flush()
            assert lines(stream, 1) == ["half and half"]

    def test_from_now_on_by_default(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("old\n")
        with host.follow(FileLog(str(path))) as stream:
            with path.open("a") as log:
                log.write("new\n")
            assert lines(stream, 1) == ["new"]

    def test_rotation_by_renaming(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("1\n")
        with host.follow(FileLog(str(path)), tail_lines=1) as stream:
            assert lines(stream, 1) == ["1"]
            with path.open("a", buffering=1) as log:
                path.rename(tmp_path / "log.1")
                log.write("2\n")
                path.write_text("4\n")
                log.write("3\n")
            assert lines(stream, 3) == ["2", "3", "4"]
            with path.open("a") as log:
                log.write("5\n")
            assert lines(stream, 1) == ["5"]

    def test_rotation_by_truncation(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("a long first line\n")
        with host.follow(FileLog(str(path)), tail_lines=1) as stream:
            assert lines(stream, 1) == ["a long first line"]
            path.write_text("2\n")
            assert lines(stream, 1) == ["2"]

    def test_a_log_that_is_not_there_yet(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "later" / "log"
        with host.follow(FileLog(str(path)), tail_lines=5) as stream:
            assert stream.readline(0.3) is None
            path.parent.mkdir()
            path.write_text("1\n")
            assert lines(stream, 1) == ["1"]

    def test_undecodable_bytes_stay_visible(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"a\xffb\r\n\n")
        with host.follow(FileLog(str(path)), tail_lines=2) as stream:
            assert lines(stream, 2) == ["a\\xffb\r", ""]

    def test_a_burst(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.touch()
        with host.follow(FileLog(str(path))) as stream:
            path.write_text("".join(f"{number}\n" for number in range(50_000)))
            assert lines(stream, 50_000) == [str(number) for number in range(50_000)]

    def test_leaving_ends_the_follower(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("1\n")
        with host.follow(FileLog(str(path)), tail_lines=1) as stream:
            assert lines(stream, 1) == ["1"]
            assert processes(str(path))
        wait_until(lambda: not processes(str(path)), deadline_s=5, what="the follower to end")
        stream.close()

    def test_a_follower_that_ends_by_itself_is_an_error(self, host: Host, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("1\n")
        with host.follow(FileLog(str(path)), tail_lines=1) as stream:
            assert lines(stream, 1) == ["1"]
            reader = wait_until(
                lambda: [child for pid in processes("follow", str(path)) for child in children(pid) if is_tail(child)],
                deadline_s=5,
                what="the reader",
            )
            os.kill(reader[0], signal.SIGKILL)
            with pytest.raises(OperationFailed, match="cannot be followed"):
                stream.readline(10)

    def test_many_at_once(self, host: Host, tmp_path: Path) -> None:
        paths = [tmp_path / f"log{number}" for number in range(8)]
        for path in paths:
            path.write_text(f"{path.name}\n")
        streams = [host.follow(FileLog(str(path)), tail_lines=1) for path in paths]
        assert [stream.readline(10) for stream in streams] == [path.name for path in paths]
        assert host.run(["echo", "still"], deadline_s=10).text == "still\n"
        for stream in streams:
            stream.close()
        wait_until(lambda: not processes(str(tmp_path)), deadline_s=5, what="the followers to end")
