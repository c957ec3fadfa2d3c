"""The shepherd itself: one process for one unit, from the start of its worker to the end of its last process."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import time
from typing import Any

from .logfile import LogFile, complain
from .processes import boot_id, kill_all, look, send, wait_for
from .records import Failure, Record, Records

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.25
SCAN_S = 3.0
KILL_DEADLINE_S = 10.0
# Blocked, and taken one by one in the loop. SIGHUP and SIGINT do nothing, SIGTERM (a shutdown) is passed on.
SIGNALS = frozenset({signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
INHERITED = ("HOME", "PATH", "USER", "LANG", "XDG_RUNTIME_DIR")


class Keeper:
    """Starts the worker of one unit, then waits for its end and puts down what it leaves behind."""

    def __init__(self, request: dict[str, Any], records: Records) -> None:
        self.request = request
        self.records = records
        self.unit: str = request["unit"]
        self.log = LogFile(request["log"], limit_bytes=request["log_limit_bytes"], keep=request["log_keep"])
        self.unsaved = False

    def start(self) -> Record:
        """Claim the name, start the worker, and return once its program has been exec'ed.

        Raises:
            Failure: the name belongs to a unit that lives; the program or its directory is missing; no log.
        """
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        me = _identity(os.getpid())
        self.record = Record(self.unit, me, boot_id(), members=[me])
        with self.records.held():
            before = self.records.read(self.unit)
            living = before.living() if before else {}
            if before and living:
                pid = before.worker[0] if before.worker and before.worker[0] in living else min(living)
                raise Failure(f"unit {self.unit} is in use", f"pid {pid} of an earlier start is alive")
            self.records.write(self.record)
        try:
            self.worker = self._start_worker()
        except OSError:
            self.records.remove(self.unit)
            raise
        self._save(self.record._replace(worker=_identity(self.worker.pid)))
        self._scan()
        return self.record

    def _start_worker(self) -> subprocess.Popen[bytes]:
        log = self.log.begin()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        home = pwd.getpwuid(os.getuid()).pw_dir
        # start_new_session: a worker that signals its own process group must not hit its shepherd. And a worker that
        # is stopped when the shepherd dies would get a SIGHUP if the two were different groups of one session.
        return subprocess.Popen(
            self.request["argv"],
            env={**minimal_environment(home), **self.request["env"]},
            cwd=self.request["cwd"] or home,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS),
        )

    def watch(self) -> None:
        """Wait for the worker's end, then end the rest of the unit. Returns when nothing of it is left."""
        next_scan = time.monotonic() + SCAN_S
        while self.record.exit_code is None:
            arrived = signal.sigtimedwait(SIGNALS, TICK_S)
            if arrived and arrived.si_signo == signal.SIGTERM:
                self.worker.terminate()
            self._reap()
            self.log.rotate_if_large()
            if time.monotonic() >= next_scan:
                self._scan()
                next_scan = time.monotonic() + SCAN_S
        self.end_rest()

    def abandon(self) -> None:
        """End the unit and forget it."""
        self.worker.kill()
        self.watch()
        self.records.remove(self.unit)

    def end_rest(self) -> None:
        """SIGTERM to what the worker left behind, SIGKILL to what is there after the grace, until nothing is."""
        for pid, ticks in self._others().items():
            send(pid, ticks, signal.SIGTERM)
        wait_for(lambda: not self._others(), self.request["grace_s"])
        # What cannot be killed hangs in the kernel. We stay as its parent, so that it can still be found as ours.
        while kill_all(self._others, KILL_DEADLINE_S):
            self._scan()
        self._scan()

    def _others(self) -> dict[int, int]:
        """The living processes of the unit besides us. Reaps first, as zombies of ours would wait for it."""
        self._reap()
        return {pid: ticks for pid, ticks in self.record.living().items() if pid != os.getpid()}

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.worker.pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self.worker.returncode = code  # or Popen would wait for it again
                ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._save(self.record._replace(exit_code=code, ended_at=ended))

    def _scan(self) -> None:
        """Keep the record true: it is what a unit is found by after our death. It also comes back when removed."""
        members = [[pid, ticks] for pid, ticks in self.record.living().items()]
        changed = members != self.record.members
        if changed or self.unsaved or not self.records.path(self.unit).exists():
            self._save(self.record._replace(members=members))

    def _save(self, record: Record) -> None:
        self.record = record
        try:
            self.records.write(record)
            self.unsaved = False
        except OSError as error:  # the disk is full: say so once, and try again at every look
            if not self.unsaved:
                complain(f"cannot write {self.records.path(self.unit)}: {error}")
            self.unsaved = True


def _identity(pid: int) -> list[int]:
    process = look(pid)
    return [pid, process.start_ticks if process else 0]


def minimal_environment(home: str) -> dict[str, str]:
    """HOME, PATH, USER, LANG and XDG_RUNTIME_DIR of the host, the first three with a default."""
    defaults = {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": pwd.getpwuid(os.getuid()).pw_name}
    return {**defaults, **{name: os.environ[name] for name in INHERITED if name in os.environ}}
