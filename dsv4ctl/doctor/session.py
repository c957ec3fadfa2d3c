"""One examination: every host, the engine's interpreter there, and what runs, all looked at side by side."""

import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv4ctl.doctor.check import Check, all_checks, worst_first
from dsv4ctl.doctor.codes import OF_GENERATIONS, OF_THE_PLAN, OF_WHAT_RUNS, UNSEEN, is_asked, is_told
from dsv4ctl.doctor.engines import engine_findings
from dsv4ctl.doctor.generations import Generated, generate
from dsv4ctl.doctor.model import model_findings, read_configs
from dsv4ctl.doctor.quick import host_findings
from dsv4ctl.doctor.running import running_findings
from dsv4ctl.doctor.timer_order import timer_findings
from dsv4ctl.doctor.versions import version_findings
from dsv4ctl.errors import CannotLook, Dsv4Error, Interrupted, NothingRunning, OperationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.fleet import Fleet, OpenHost, open_fleet
from dsv4ctl.launch import PREFLIGHT_CODES, Launch, check_cards, preflight, read_hosts, unfit
from dsv4ctl.profile.here import load_here
from dsv4ctl.profile.loading import LoadedProfile
from dsv4ctl.restart.situation import open_found
from dsv4ctl.stack import Stack, build_stack
from dsv4ctl.state import StackRecord
from dsv4ctl.targets import Target

if TYPE_CHECKING:
    from dsv4ctl.signals import Interrupts

_SAME_HAZARD = {
    "expandable-segments-cuda-ipc": "EXPANDABLE_SEGMENTS",
    "ucx-without-failure-handling": "UCX_TLS_NO_FAILURE_HANDLING",
    "nccl-graph-file-empty": "NCCL_GRAPH_FILE_EMPTY",
}
_NOT_ANSWERING = frozenset({"WORKER_DOWN", "WORKER_NOT_STARTED", "WORKER_SILENT"})
_OF_GPUS = ".gpus"
_NO_SUCH_GPU = frozenset({"GPU_MISSING", "GPU_TOO_FEW", "DRIVER_MISSING", "DRIVER_FAILS"})

Part = Callable[[], Iterable[Finding]]

BEFORE_A_START = frozenset({"PORT_TAKEN"})
"""What is a fault before a start, and the stack itself afterwards."""


@dataclass(frozen=True)
class Subject:
    """What is examined: a profile's plan and its hosts, and what is recorded of it there; nothing, where it does not
    run. `unknown`: why it could not be seen whether it runs."""

    loaded: LoadedProfile
    fleet: Fleet
    stack: Stack
    records: tuple[tuple[str, StackRecord], ...]
    unknown: OperationFailed | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started."""
        return bool(self.records)

    @property
    def target(self) -> Target:
        """The same, for what looks at running stacks."""
        return Target(self.stack.name, self.fleet, self.records, self.stack)


@dataclass(frozen=True)
class Examined:
    """What was found, the worst first. `seconds` by part; `generated` where the stack runs. `ended`: the person ended
    it before everything was looked at."""

    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    checks: int
    generated: Generated | None = None
    ended: Interrupted | None = None

    def count(self, severity: Severity) -> int:
        """How many findings are that bad."""
        return sum(finding.severity is severity for finding in self.findings)


@contextmanager
def open_subject(ref: str | None, open_host: OpenHost) -> Iterator[Subject]:
    """The stack that `ref` means, running or not, with its hosts open.

    Raises:
        UsageError: the profile is wrong.
        HostUnreachable
    """
    try:
        with open_found(ref, open_host) as found:
            stack = build_stack(found.loaded, {name: place.site for name, place in found.fleet.items()})
            records = [(name, place.store.load(stack.name)) for name, place in found.fleet.items()]
            known = tuple((name, record) for name, record in records if record is not None)
            yield Subject(found.loaded, found.fleet, stack, known)
            return
    except NothingRunning:
        unknown = None
    except OperationFailed as error:
        # A supervisor that does not answer is a finding like others: the box is to be examined all the same.
        unknown = error
    loaded = load_here(ref)
    with open_fleet(loaded.profile, open_host) as fleet:
        stack = build_stack(loaded, {name: place.site for name, place in fleet.items()})
        yield Subject(loaded, fleet, stack, (), unknown)


@dataclass
class Examination:
    """The parts of one examination, each of which may fail by itself: then it says so in a finding."""

    subject: Subject
    interrupts: "Interrupts"
    say: Callable[[str], None]
    only: str | None = None
    clock: Callable[[], float] = time.monotonic
    _seconds: dict[str, float] = field(default_factory=dict)
    _generated: Generated | None = None

    def run(self) -> Examined:
        """Look at everything. Where the person wants to end, nothing more is begun, and what was found is returned."""
        subject = self.subject
        checks = [check for check in all_checks() if self.only in (None, UNSEEN, check.code)]
        parts: dict[str, Part] = {f"host {name}": self._of_host(name, checks) for name in subject.fleet if checks}
        if is_asked(OF_THE_PLAN, self.only):
            parts["the installation"] = self._of_installation
        if is_asked(OF_WHAT_RUNS, self.only):
            parts["what runs" if subject.runs else "the timers"] = self._of_running
        if parts:
            self.say(f"looking at {', '.join(parts)}")
        findings: list[Finding] = [] if subject.unknown is None else [blind("what runs", subject.unknown)]
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            running = [pool.submit(self._timed, name, part) for name, part in parts.items()]
            for future in running:
                findings += future.result()
        if subject.runs and is_asked(OF_GENERATIONS, self.only) and not self.interrupts.asked:
            silent = [str(finding.evidence["worker"]) for finding in findings if finding.code in _NOT_ANSWERING]
            if silent:
                # Each would be waited for as long as a generation may take, which on real cards is minutes.
                findings.append(_not_asked(silent))
            else:
                self.say("asking every hop for a small and a large generation")
                findings += self._timed("generations", self._of_generations)
        mine = [finding for finding in findings if is_told(finding.code, self.only)]
        found = worst_first(told_once(mine))
        return Examined(found, dict(self._seconds), len(checks), self._generated, self._ended())

    def _ended(self) -> Interrupted | None:
        try:
            self.interrupts.check()
        except Interrupted as error:
            return error
        return None

    def _of_host(self, name: str, checks: Sequence[Check]) -> Part:
        subject = self.subject
        wanted = [check for check in checks if not (subject.runs and check.code in BEFORE_A_START)]
        if not subject.runs and self.only in (None, UNSEEN):
            # What is asked before a start comes with its own words for these.
            wanted = [check for check in wanted if check.code not in PREFLIGHT_CODES]
        workers = subject.stack.on(name)
        return lambda: host_findings(wanted, subject.fleet[name].host, name, subject.loaded.profile, workers)

    def _of_installation(self) -> Iterable[Finding]:
        """Software and model, and, where nothing runs, whether it could be started now."""
        subject, work = self.subject, self._launch()
        facts = read_hosts(work)
        profile = subject.loaded.profile
        packages = {host: each.packages for host, each in facts.items()}
        yield from engine_findings(subject.loaded, subject.fleet, subject.stack, packages)
        yield from version_findings(profile, facts)
        size = int(profile.model.size_gb * 1024**3) if profile.model.size_gb else None
        yield from model_findings(subject.stack, read_configs(subject.fleet, subject.stack), facts, size)
        if not subject.runs:
            problems = unfit(work, facts)
            for problem in problems:
                remedy = "correct the profile for this box, or look at the box: `dsv4ctl serve` refuses it"
                yield Finding("PROFILE_UNFIT", Severity.ERROR, str(problem), remedy, {"key": problem.key})
            yield from preflight(work, facts)
            try:
                check_cards(work, facts)
            except CannotLook as error:
                if not any(_OF_GPUS in problem.key for problem in problems):
                    yield blind("whether the GPUs are those of the plan", error)

    def _of_running(self) -> Iterable[Finding]:
        subject = self.subject
        if subject.runs:
            return running_findings(subject.target)
        return timer_findings(subject.stack.workers)

    def _of_generations(self) -> Iterable[Finding]:
        subject = self.subject
        canary = subject.loaded.profile.canary
        self._generated = generate(subject.target, canary, self.interrupts, random.SystemRandom())
        return self._generated.findings

    def _timed(self, name: str, part: Part) -> Sequence[Finding]:
        began = self.clock()
        try:
            return tuple(part())
        except Interrupted:
            # What others found is kept, and `run` says that it was ended.
            return ()
        except Dsv4Error as error:
            return (blind(name, error),)
        except Exception as error:  # noqa: BLE001 - the box may be broken as nobody foresaw, and has other parts
            return (_own_fault(name, error),)
        finally:
            self._seconds[name] = round(self.clock() - began, 3)

    def _launch(self) -> Launch:
        subject = self.subject
        return Launch(
            loaded=subject.loaded,
            stack=subject.stack,
            fleet=subject.fleet,
            interrupts=self.interrupts,
            report=lambda *_: None,
            on_look=lambda _: None,
            on_finding=lambda _: None,
            on_trouble=lambda _: None,
            rng=random.SystemRandom(),
        )


def _not_asked(silent: Sequence[str]) -> Finding:
    message = f"generations were not asked for: {', '.join(silent)} would not answer"
    remedy = "mend that first; `dsv4ctl probe` asks each hop by itself, and says which one hangs"
    return Finding("PART_UNSEEN", Severity.UNKNOWN, message, remedy, {"part": "generations"})


def _own_fault(part: str, error: Exception) -> Finding:
    message = f"{part} could not be looked at: dsv4ctl met a fault of its own: {type(error).__name__}: {error}"
    remedy = "report it, with a bundle (`dsv4ctl doctor --bundle FILE`), which has the traceback"
    trace = "".join(traceback.format_exception(error))
    return Finding("PART_UNSEEN", Severity.UNKNOWN, message, remedy, {"part": part, "traceback": trace})


def blind(part: str, error: Dsv4Error) -> Finding:
    """PART_UNSEEN: a part of the examination that could not be made, and why."""
    message = f"{part} could not be looked at: {error}"
    remedy = error.hint or "look again; what was found is without it"
    return Finding("PART_UNSEEN", Severity.UNKNOWN, message, remedy, {"part": part})


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Each fault once: two parts may notice the same, and the check of a host says it best."""
    codes = {finding.code for finding in findings}
    kept: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        hazard, key = finding.evidence.get("hazard"), str(finding.evidence.get("key"))
        if finding.code == "HAZARD" and _SAME_HAZARD.get(str(hazard)) in codes:
            continue
        if finding.code == "PROFILE_UNFIT" and _OF_GPUS in key and _NO_SUCH_GPU & codes:
            continue
        kept.setdefault((finding.code, finding.message), finding)
    return list(kept.values())
