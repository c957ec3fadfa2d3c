"""Watching a stack: one look gives the truth about every worker, from the kernel, from its log, and from its port."""

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4ctl.engine_keys import keys_of
from dsv4ctl.errors import CannotLook, HostUnreachable, OperationFailed
from dsv4ctl.fleet import Fleet, Place
from dsv4ctl.loglines import FirstError, LogDigest
from dsv4ctl.procfs import still_there
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.state import WorkerRecord
from dsv4ctl.supervisors.base import UnitState, UnitStatus

if TYPE_CHECKING:
    import httpx

    from dsv4ctl.hosts.base import LogStream

_HTTP_TIMEOUT_S = 2.0
# The follower of a log that has just been opened, and of a worker that has just ended, may still have lines to bring.
_LAST_WORDS_S = 0.5
_WHOLE_LOG = 1_000_000


@dataclass(frozen=True)
class WorkerView:
    """What one look said about a worker. `answers`: its port speaks HTTP (and, for the router, knows its workers).

    `waits_for` is what keeps it from answering, in words; empty when it answers or is not running. `state` is None for
    a worker that was not started yet.
    """

    name: str
    role: str
    host: str
    url: str
    state: UnitState | None
    pid: int | None
    age_s: float | None
    answers: bool
    waits_for: str
    exit_code: int | None
    first_error: FirstError | None
    last_line: str
    fatal: bool = False
    proven: bool = False

    @property
    def ended(self) -> bool:
        """Whether it was started and is not running any more."""
        return self.state is not None and self.state is not UnitState.RUNNING

    @property
    def word(self) -> str:
        """Its state in one word or two, for a table."""
        if self.state is None:
            return "not started"
        if self.state is UnitState.RUNNING:
            return "up" if self.answers else "silent" if self.proven else "starting"
        if self.state is UnitState.EXITED:
            return ending(self.exit_code)
        return self.state.value


def ending(exit_code: int | None) -> str:
    """How a process ended, in words."""
    import signal

    if exit_code is None:
        return "ended, nobody saw how"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"


class Watch:
    """Looks at the workers of a stack, again and again, cheaply: logs are followed, connections are kept."""

    def __init__(
        self,
        fleet: Fleet,
        workers: Sequence[tuple[str, WorkerRecord]],
        *,
        with_logs: bool = True,
        answer_holds_s: float = 0.0,
        proven: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer_holds_s`: a worker that answered is taken to answer for that long, since the router logs every
        request. `proven`: the stack has been up, so a worker that does not answer is silent, and not starting."""
        self._fleet = fleet
        self._workers = {record.name: (host, record) for host, record in workers}
        self._with_logs = with_logs
        self._clock = clock
        self._answer_holds_s = answer_holds_s
        self.proven = proven
        self._answered_at: dict[str, float] = {}
        self._known: dict[str, tuple[UnitStatus, float]] = {}
        self._digests = {record.name: LogDigest() for _, record in workers}
        self._streams: dict[str, LogStream] = {}
        self._clients: dict[str, httpx.Client] = {}
        self._exit = ExitStack()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the followers and the connections."""
        self._exit.close()

    def update(self, record: WorkerRecord) -> None:
        """The worker was started: its record has a handle now."""
        host, _ = self._workers[record.name]
        self._workers[record.name] = (host, record)

    def look(self) -> tuple[WorkerView, ...]:
        """The truth about every worker now.

        Raises:
            HostUnreachable: a host could not be asked.
        """
        return tuple(self._look_at(host, record) for host, record in self._workers.values())

    def _look_at(self, host_name: str, record: WorkerRecord) -> WorkerView:
        place = self._fleet[host_name]
        status = self._status(place, record)
        if self._with_logs and record.handle is not None:
            ended = status is not None and status.state is not UnitState.RUNNING
            patient = ended or record.name not in self._streams
            self._read_log(place, record, patience_s=_LAST_WORDS_S if patient else 0.0)
        answers = status is not None and status.state is UnitState.RUNNING and self._answers(place, record)
        digest = self._digests[record.name]
        return WorkerView(
            name=record.name,
            role=record.role,
            host=host_name,
            url=f"http://{record.listen}:{record.port}",
            state=status.state if status else None,
            pid=status.main_pid if status else None,
            age_s=status.age_s if status else None,
            answers=answers,
            waits_for=self._waits_for(record, status, answers, digest),
            exit_code=status.exit_code if status else None,
            first_error=digest.first_error,
            last_line=digest.last_line,
            fatal=digest.fatal,
            proven=self.proven,
        )

    def _status(self, place: Place, record: WorkerRecord) -> UnitStatus | None:
        """The unit's status. Asking a supervisor starts a program on the host, which an engine that starts there would
        feel; so while the process that leads the unit is the one that was seen running, only that is looked at."""
        handle = record.handle
        if handle is None:
            return None
        known, at = self._known.get(record.name, (None, 0.0))
        if known is not None and still_there(place.host, handle.pid, handle.start_ticks):
            age = None if known.age_s is None else known.age_s + self._clock() - at
            return replace(known, age_s=age)
        status = place.supervisor.status(handle)
        if status.state is UnitState.RUNNING and status.main_pid is not None:
            self._known[record.name] = (status, self._clock())
        else:
            self._known.pop(record.name, None)
        return status

    def _waits_for(self, record: WorkerRecord, status: UnitStatus | None, answers: bool, digest: LogDigest) -> str:
        if self.proven or status is None or status.state is not UnitState.RUNNING or answers:
            return ""
        return "its workers" if record.role == ROUTER else digest.waits_for or "its HTTP port"

    def _read_log(self, place: Place, record: WorkerRecord, *, patience_s: float) -> None:
        assert record.handle is not None
        stream = self._streams.get(record.name)
        if stream is None:
            stream = place.host.follow(place.supervisor.log(record.unit, record.handle), tail_lines=_WHOLE_LOG)
            self._streams[record.name] = self._exit.enter_context(stream)
        try:
            while (line := stream.readline(patience_s)) is not None:
                self._digests[record.name].feed(line)
        except HostUnreachable:
            # The next look follows the log anew, from its beginning.
            del self._streams[record.name]
            self._digests[record.name] = LogDigest()
            raise

    def _answers(self, place: Place, record: WorkerRecord) -> bool:
        answered_at = self._answered_at.get(record.name)
        if answered_at is not None and self._clock() - answered_at < self._answer_holds_s:
            return True
        answers = self._ask(place, record)
        if answers:
            self._answered_at[record.name] = self._clock()
        return answers

    def _ask(self, place: Place, record: WorkerRecord) -> bool:
        import httpx

        client = self._clients.get(place.name)
        if client is None:
            client = place.host.http(timeout_s=_HTTP_TIMEOUT_S)
            self._clients[place.name] = self._exit.enter_context(client)
        # Neither is a health check: /health of a prefill worker sends a request through its inflight queue.
        path = "/workers" if record.role == ROUTER else "/model_info"
        try:
            headers = {} if record.role == ROUTER else keys_of(place, record, "--api-key")
            response = client.get(f"http://{record.listen}:{record.port}{path}", headers=headers)
            if response.status_code != 200:
                return False
            if record.role != ROUTER:
                return True
            listed = response.json().get("workers", [])
        except (httpx.HTTPError, ValueError, CannotLook):
            return False
        engines = sum(worker.role != ROUTER for _, worker in self._workers.values())
        return sum(bool(worker.get("is_healthy")) for worker in listed) >= engines


def logs_command(worker: str, profile: str) -> str:
    """What a person types to read a worker's log; `profile` as the record has it, empty when that was lost."""
    return f"dsv4ctl logs {worker}" + (f" -p {shlex.quote(profile)}" if profile else "")


def death(view: WorkerView, profile: str) -> OperationFailed:
    """The error that says why a worker is not running: the first error of its log, not the last."""
    after = f" after {view.age_s:.1f} s" if view.age_s is not None else ""
    what = f"{view.name} on {view.host} {'cannot start' if not view.ended else f'is not running: {view.word}'}{after}"
    if view.first_error is not None:
        why = str(view.first_error)
    elif view.exit_code == -9:
        why = (
            "nothing in its log says why: SIGKILL is what the kernel sends when memory runs out (see `dmesg`), and "
            "dsv4ctl to an engine that does not end by itself"
        )
    else:
        why = f"no error was recognised in its log; the last line is: {view.last_line or '(empty)'}"
    return OperationFailed(what, why=why, hint=logs_command(view.name, profile))
