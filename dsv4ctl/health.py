"""What `status` says: every worker as it is, and what is wrong with the stack, as findings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv4ctl.chain import told_timeouts_s
from dsv4ctl.drift import Drift, drift_of, with_told_timeout
from dsv4ctl.errors import OperationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.observe import Watch, WorkerView, death, logs_command
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.restart.pending import Pending, PendingStore, state_of
from dsv4ctl.supervisors.base import UnitState
from dsv4ctl.targets import Target

_OF_A_RESTART = frozenset({"WORKER_DOWN", "WORKER_NOT_STARTED", "WORKER_SILENT"})
_GO_ON = "wait if a `co-restart` is at work; otherwise run `dsv4ctl co-restart` again: it goes on from there"


@dataclass(frozen=True)
class StackStatus:
    """The stack now. `drifts` by worker; a worker that could not be read back has a finding instead."""

    stack: str
    profile: str
    supervisor: str
    started_at: str
    entry_url: str
    proven: bool
    workers: tuple[WorkerView, ...]
    drifts: dict[str, tuple[Drift, ...]]
    findings: tuple[Finding, ...]


def stack_status(target: Target) -> StackStatus:
    """Look once at everything.

    Raises:
        HostUnreachable: a host could not be asked.
    """
    members = [(host, worker) for host, record in target.records for worker in record.workers]
    proven = all(record.ready for _, record in target.records)
    with Watch(target.fleet, members, proven=proven) as watch:
        views = watch.look()
    findings: list[Finding] = [_unrecorded(target, host) for host in target.unrecorded]
    drifts: dict[str, tuple[Drift, ...]] = {}
    for view, (host, worker) in zip(views, members, strict=True):
        findings += _of_worker(view, target.records[0][1].profile)
        if view.state is UnitState.RUNNING and view.pid is not None:
            try:
                found = drift_of(target.fleet[host].host, view.pid, worker)
                told = told_timeouts_s(target.fleet[host], worker) if view.answers else None
                now_s, standing_s = told or (None, None)
                drifts[view.name] = with_told_timeout(found, worker, standing_s)
                if now_s is not None and standing_s is not None and now_s != standing_s:
                    findings.append(_on_lease(view, now_s, standing_s))
            except (OperationFailed, FileNotFoundError, PermissionError) as error:
                findings.append(_cannot_read_back(view, str(error)))
            else:
                findings += _of_drift(view, drifts[view.name])
    record = target.records[0][1]
    pending = next(filter(None, (PendingStore(place, target.name).load() for place in target.fleet.values())), None)
    if pending is not None:
        # What it has ended or not started yet is its own to go on with.
        findings = [replace(one, remedy=_GO_ON) if one.code in _OF_A_RESTART else one for one in findings]
        findings.append(_unfinished(pending))
    else:
        kept = [(name, PendingStore(place, target.name).left_over()) for name, place in target.fleet.items()]
        findings += [_secrets_left(name, path) for name, path in kept if path is not None]
        if not proven and not target.unrecorded:
            findings.append(_not_proven(target))
    return StackStatus(
        stack=target.name,
        profile=record.profile,
        supervisor=record.supervisor,
        started_at=record.started_at,
        entry_url=record.entry_url,
        proven=proven,
        workers=views,
        drifts=drifts,
        findings=tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity))),
    )


def _of_worker(view: WorkerView, profile: str) -> Sequence[Finding]:
    evidence = {"worker": view.name, "host": view.host, "pid": view.pid, "exit_code": view.exit_code}
    if view.state is None:
        message = f"{view.name} on {view.host} was never started"
        remedy = "wait if a `serve` is at work; otherwise `dsv4ctl stop`, then `dsv4ctl serve`"
        return [Finding("WORKER_NOT_STARTED", Severity.ERROR, message, remedy, evidence)]
    if view.state is UnitState.FOREIGN:
        message = f"the pid or unit of {view.name} on {view.host} now belongs to something that we did not start"
        remedy = "nothing of ours runs under it: `dsv4ctl stop` clears the record and touches nobody"
        return [Finding("PID_REUSED", Severity.ERROR, message, remedy, evidence)]
    if view.state is UnitState.REBOOTED:
        message = f"{view.host} was restarted since {view.name} was started"
        return [Finding("HOST_REBOOTED", Severity.ERROR, message, "`dsv4ctl serve` starts the stack again", evidence)]
    if view.ended:
        error = death(view, profile)
        message = f"{error.what}: {error.why}"
        return [Finding("WORKER_DOWN", Severity.ERROR, message, f"{error.hint}; `dsv4ctl stop` clears it", evidence)]
    if not view.answers:
        waits = f"; it waits for {view.waits_for}" if view.waits_for else ""
        lacks = " or does not use all its workers" if view.role == ROUTER else ""
        message = f"{view.name} on {view.host} runs and does not answer on {view.url}{lacks}{waits}"
        return [Finding("WORKER_SILENT", Severity.ERROR, message, logs_command(view.name, profile), evidence)]
    return []


def _of_drift(view: WorkerView, drifts: Sequence[Drift]) -> list[Finding]:
    return [
        Finding(
            "CONFIG_DRIFT",
            Severity.ERROR,
            f"{view.name} (pid {view.pid} on {view.host}) does not run as planned: {drift}",
            "restart the stack if the plan is right",
            {"worker": view.name, "what": drift.what, "planned": drift.planned, "running": drift.running},
        )
        for drift in drifts
    ]


def _on_lease(view: WorkerView, now_s: float, standing_s: float) -> Finding:
    return Finding(
        "TIMEOUT_ON_LEASE",
        Severity.WARNING,
        f"{view.name} on {view.host} has {now_s:g} s for an inflight timeout for a time, then {standing_s:g} s again",
        "a `dsv4ctl tune-timeout` is at work, or was ended in the middle of it: the engine goes back by itself",
        {"worker": view.name, "timeout_s": now_s, "standing_s": standing_s},
    )


def _cannot_read_back(view: WorkerView, why: str) -> Finding:
    message = f"what {view.name} (pid {view.pid} on {view.host}) runs with cannot be read back: {why}"
    return Finding(
        "READ_BACK_UNKNOWN", Severity.UNKNOWN, message, "look again; if it stays so, ask as the user who owns it", {}
    )


def _unrecorded(target: Target, host: str) -> Finding:
    message = f"the record of {target.name} on {host} is gone; its units were found through the supervisor"
    remedy = "`dsv4ctl stop` ends them; after that `dsv4ctl serve` starts and records the stack again"
    return Finding("RECORD_MISSING", Severity.WARNING, message, remedy, {"host": host})


def _unfinished(pending: Pending) -> Finding:
    message = f"a co-restart that was begun at {pending.began_at} has not ended; {state_of(pending)}"
    return Finding(
        "CO_RESTART_UNFINISHED",
        Severity.ERROR,
        message,
        _GO_ON,
        {"phase": pending.phase, "step": pending.step, "began_at": pending.began_at},
    )


def _secrets_left(host: str, path: str) -> Finding:
    message = f"{path} on {host} keeps the environment of engines for a co-restart that is over, secrets and all"
    remedy = f"`dsv4ctl stop` and the next `co-restart` remove it; or remove it by hand: rm {path}"
    return Finding("SECRETS_LEFT", Severity.WARNING, message, remedy, {"host": host, "path": path})


def _not_proven(target: Target) -> Finding:
    message = f"{target.name} never proved that it answers: its start is under way, or was cut off"
    return Finding("NOT_PROVEN", Severity.WARNING, message, "wait for the start, or `dsv4ctl stop` and serve again", {})
