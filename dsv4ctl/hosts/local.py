"""This machine."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path

import httpx

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.hosts import guard
from dsv4ctl.hosts.base import Completed, LogSource, LogStream
from dsv4ctl.hosts.command import cannot_start, check_command, describe, require_success
from dsv4ctl.hosts.follow import START_DEADLINE_S, Lines, describe_source, follower_argv, started
from dsv4ctl.hosts.remote_files import os_error
from dsv4ctl.hosts.trust import trusted
from dsv4ctl.waiting import wait_until

LOCAL = "local"
CHUNK = 1 << 20
TERM_GRACE_S = 1.0
# After SIGKILL only a process in uninterruptible sleep is left, or one that moved to another session with our pipe.
REAP_S = 2.0


class LocalHost:
    """The machine we run on (see `Host` for what each method promises)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    @property
    def name(self) -> str:
        return LOCAL

    @property
    def losses(self) -> int:
        """None: there is no way to it."""
        return 0

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
    ) -> Completed:
        """Run a command in a session of its own (see `Host.run`)."""
        check_command(argv, env)
        started = self._clock()
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **env} if env else None,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(LOCAL, argv, cwd, error.strerror) from error
        with process:
            try:
                stdout, stderr = process.communicate(stdin or None, timeout=deadline_s)
            except subprocess.TimeoutExpired as error:
                what = f"{LOCAL}: {describe(argv)} had not ended after {deadline_s:g} s"
                if end_session(process):
                    raise DeadlineExceeded(f"{what}, and was killed") from error
                raise DeadlineExceeded(what, why="some of its processes did not end when killed") from error
            except BaseException:
                end_session(process)
                raise
        completed = Completed(tuple(argv), process.returncode, stdout, stderr, self._clock() - started)
        return require_success(LOCAL, completed) if check else completed

    def read(self, path: str, *, offset: int = 0, limit: int | None = None, deadline_s: float = 10.0) -> bytes:
        """Bytes of a file (see `Host.read`). The kernel cannot be interrupted in the middle of a chunk."""
        end = self._clock() + deadline_s
        data = bytearray()
        try:
            # Non-blocking, so that opening a pipe that nobody writes does not wait.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:  # noqa: PTH123
                size = os.fstat(file.fileno()).st_size
                if offset > 0:
                    file.seek(offset)
                elif size:
                    file.seek(max(0, size + offset) if offset else 0)
                while chunk := file.read(CHUNK if limit is None or not size else min(CHUNK, limit - len(data))):
                    data += chunk
                    if self._clock() > end:
                        raise DeadlineExceeded(f"{LOCAL}: {path} was not read within {deadline_s:g} s")
        except OSError as error:
            raise os_error(error.errno or 0, LOCAL, path) from error
        # A file under /proc has no size to seek by.
        whole = data[offset:] if offset < 0 and not size else data
        return bytes(whole if limit is None else whole[:limit])

    def write(self, path: str, data: bytes, *, mode: int = 0o600, deadline_s: float = 10.0) -> None:
        """Replace a file atomically (see `Host.write`)."""
        end = self._clock() + deadline_s
        target = Path(path)
        try:
            _make_parents(target.parent)
            handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            try:
                with os.fdopen(handle, "wb", buffering=0) as file:
                    self._write_all(file, data, end, path)
                    os.fchmod(handle, mode)
                    os.fsync(handle)
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            _sync_directory(target.parent)
        except OSError as error:
            raise OperationFailed(f"{LOCAL}: cannot write {path}", why=error.strerror) from error

    def _write_all(self, file: FileIO, data: bytes, end: float, path: str) -> None:
        left = memoryview(data)
        while left:
            if self._clock() > end:
                raise DeadlineExceeded(f"{LOCAL}: {path} was not written in time")
            left = left[file.write(left[:CHUNK]) :]

    def http(self, *, timeout_s: float) -> httpx.Client:
        """A plain client (see `Host.http`). Proxies of the environment are not for our loopback."""
        return httpx.Client(transport=self.transport(), timeout=timeout_s, trust_env=False)

    def transport(self) -> httpx.BaseTransport:
        """Below a plain client (see `Host.transport`)."""
        return httpx.HTTPTransport(verify=trusted(), trust_env=False)

    def follow(self, source: LogSource, *, tail_lines: int = 0) -> LogStream:
        """Follow a log (see `Host.follow`). The follower ends when we do, whatever way we end."""
        argv = guard.guarded(follower_argv(source, tail_lines), lease_s=0, held=guard.Input.HELD)
        try:
            pipe = ProcessPipe(argv)
        except OSError as error:
            raise cannot_start(LOCAL, argv, None, error.strerror) from error
        return started(
            Lines(pipe, f"{LOCAL}: {describe_source(source)}", self._clock), self._clock() + START_DEADLINE_S
        )

    def close(self) -> None:
        """Nothing is kept open."""


class ProcessPipe:
    """A follower on this machine. Its standard input is the line it hangs on."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bytes | None:
        """See `Pipe.read`."""
        return os.read(self._output, CHUNK) if self._selector.select(timeout_s) else None

    def stderr(self) -> bytes:
        """See `Pipe.stderr`."""
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        """End the follower and collect it."""
        end_session(self._process)
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


def end_session(process: "subprocess.Popen[bytes]") -> bool:
    """End a session by its leader: SIGTERM to all of it, a second later SIGKILL. True when all are gone."""
    for number, wait_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, REAP_S)):
        members = session_members(process.pid)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        try:
            wait_until(
                lambda: process.poll() is not None and not session_members(process.pid),
                deadline_s=wait_s,
                what=f"the session of pid {process.pid} to end",
                interval_s=0.02,
            )
        except DeadlineExceeded:
            continue
        return True
    return False


def session_members(session: int) -> list[int]:
    """The pids of a session, zombies left out. Where there is no /proc, only the leader is known."""
    proc = Path("/proc")
    if not (proc / "self/stat").exists():
        return [session]
    members = []
    for stat in proc.glob("[0-9]*/stat"):
        try:
            text = stat.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # After the name in parentheses: state, parent, group, session (proc(5)).
        state, _, _, number = text.rpartition(")")[2].split()[:4]
        if int(number) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


def _make_parents(directory: Path) -> None:
    """Like `mkdir -p` with a umask of 077: what is there already keeps its mode."""
    missing = [directory, *directory.parents]
    for parent in reversed([path for path in missing if not path.exists()]):
        parent.mkdir(mode=0o700, exist_ok=True)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
