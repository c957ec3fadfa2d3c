"""Carrying out `tune-timeout --verify`. The engines are put back in every case: by us, or by their lease."""

import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dsv4ctl.errors import CannotLook, DeadlineExceeded, Dsv4Error, VerificationFailed
from dsv4ctl.hosts.base import FileLog
from dsv4ctl.plan import Always, Facts, Step
from dsv4ctl.printable import printable, without_colours
from dsv4ctl.timers import TICK_S
from dsv4ctl.tuning.held_canary import HeldCanary
from dsv4ctl.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from dsv4ctl.fleet import Fleet
    from dsv4ctl.tuning.control import PrefillEngine
    from dsv4ctl.tuning.verify_plan import Proof

ENDED = "inflight timeout"
"""What every answer of the watchdog begins with; docs/inflight.md."""

FIRES = "dsv4_watchdog_fires_total"
DECODE_HOLDS = "dsv4_decode_held_requests"

_LOOK_EVERY_S = 0.1
_PUBLISHED_WITHIN_S = 1.5
_LINES = 5000
_LINE_WITHIN_S = 0.5
_AGE = re.compile(r"for (\d+(?:\.\d+)?) s after its prefill")
# The engine rounds the age to tenths.
_ROUNDING_S = 0.06
# Routers choose among several prefill workers; so many canaries for each are sent before one counts as not chosen.
_CANARIES_EACH = 3


@dataclass(frozen=True)
class Counted:
    """What one prefill worker says: canaries that are held now, ended requests whose pages it keeps, and, since its
    start, the watchdog's fires and the requests that left its queue, by how."""

    held: int
    settling: int
    fires: int
    left: dict[str, int]

    def since(self, before: "Counted") -> dict[str, int]:
        """Requests that left meanwhile, by how."""
        return {outcome: count - before.left.get(outcome, 0) for outcome, count in self.left.items()}


@dataclass
class Canaries:
    """Those that were sent, by the worker that has them in its queue."""

    sent: list[HeldCanary] = field(default_factory=list)
    of: dict[str, list[HeldCanary]] = field(default_factory=dict)


@dataclass
class Verifying:
    """One verification: what it acts on, and what it has seen so far."""

    proof: "Proof"
    engines: Sequence["PrefillEngine"]
    decodes: Sequence["DecodeEngine"]
    fleet: "Fleet"
    send: Callable[[HeldCanary], None]
    sleep: Callable[[float], None]
    rng: random.Random
    before: dict[str, Counted] = field(default_factory=dict)
    fires_before: dict[str, float] = field(default_factory=dict)
    holds_before: dict[str, float] = field(default_factory=dict)
    canaries: Canaries = field(default_factory=Canaries)
    shortened: list["PrefillEngine"] = field(default_factory=list)
    standing_s: dict[str, float] = field(default_factory=dict)

    def engine(self, worker: str) -> "PrefillEngine":
        """A prefill worker by its name."""
        return next(engine for engine in self.engines if engine.worker == worker)

    def wait(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait in short steps that Ctrl-C ends."""
        wait_until(condition, deadline_s=within_s, interval_s=_LOOK_EVERY_S, what=what, sleep=self.sleep)

    def put_back(self) -> list[str]:
        """End every lease that was begun. Returns what became of each, as sentences."""
        said = []
        for engine in list(self.shortened):
            before_s = self.standing_s[engine.worker]
            try:
                now = engine.end_lease()
            except Dsv4Error as error:
                said.append(
                    f"{engine.worker} on {engine.host} could not be told to go back to {before_s:g} s ({error}): its "
                    f"lease does that, {self.proof.lease_s:.0f} s after its beginning"
                )
            else:
                self.shortened.remove(engine)
                said.append(f"{engine.worker} on {engine.host} has {now.timeout_s:g} s again, read back")
        return said


@dataclass(frozen=True)
class DecodeEngine:
    """A decode worker that is looked at."""

    worker: str
    url: str
    client: "httpx.Client"


class VerifyAction(Always):
    """How each step of the plan is done."""

    def __init__(self, work: Verifying, step: Step) -> None:
        self._work = work
        self._step = step

    def run(self) -> Facts:
        kind, _, worker = self._step.id.partition(":")
        does: dict[str, Callable[[], Facts]] = {
            "shorten": lambda: _shorten(self._work, worker),
            "enters": lambda: _enters(self._work, self._step.deadline_s),
            "fires": lambda: _fires(self._work, self._step.deadline_s),
            "answer": lambda: _answer(self._work),
            "clean": lambda: _clean(self._work, self._step.deadline_s),
            "told": lambda: _told(self._work, worker, self._step.deadline_s),
            "restore": lambda: _restore(self._work, worker),
        }
        return does[kind]()


def counted(engine: "PrefillEngine") -> Counted:
    """What a worker has counted.

    Raises:
        CannotLook
    """
    loads = [load.dsv4 for load in engine.loads()]
    try:
        left: dict[str, int] = {}
        for load in loads:
            for outcome, count in load["left_total"].items():
                left[outcome] = left.get(outcome, 0) + int(count)
        held, settling, fires = (sum(int(load[name]) for load in loads) for name in ("held", "settling", "fires_total"))
        return Counted(held, settling, fires, left)
    except KeyError as error:
        raise CannotLook(f"{engine.worker} on {engine.host} does not tell {error} of its queue") from error


def _shorten(work: Verifying, worker: str) -> Facts:
    engine = work.engine(worker)
    # From here on it may have it, whether or not we hear of it.
    work.shortened.append(engine)
    now = engine.put(work.proof.timeout_s, was_s=work.standing_s[worker], lease_s=work.proof.lease_s)
    return {"timeout_s": now.timeout_s, "standing_s": now.standing_s, "lease_left_s": now.lease_left_s}


def _enters(work: Verifying, within_s: float) -> Facts:
    for engine in work.engines:
        work.before[engine.worker] = counted(engine)
        work.fires_before[engine.worker] = engine.metrics().total(FIRES) or 0.0
    work.holds_before = {decode.worker: decode_holds(decode) for decode in work.decodes}
    end_s = time.monotonic() + within_s
    most = _CANARIES_EACH * len(work.engines)
    began_s = time.monotonic()
    while len(work.canaries.of) < len(work.engines) and len(work.canaries.sent) < most:
        canary = HeldCanary(work.proof.hold_s, work.rng)
        work.canaries.sent.append(canary)
        work.send(canary)
        left_s = max(0.0, end_s - time.monotonic())
        work.wait(partial(_has_entered, work, canary), left_s, f"{canary.rid} to be in a queue")
    if missed := [engine.worker for engine in work.engines if engine.worker not in work.canaries.of]:
        raise VerificationFailed(
            f"the router sent none of {most} canaries to {', '.join(missed)}, so nothing is known of it",
            hint="see its policy: `dsv4ctl status` says whether the router has all workers",
        )
    return {
        "canaries": {worker: [one.rid for one in held] for worker, held in work.canaries.of.items()},
        "seconds_until_seen": round(time.monotonic() - began_s, 3),
    }


def _has_entered(work: Verifying, canary: HeldCanary) -> bool:
    if canary.ended:
        raise _ended_otherwise(canary, "before it was in a queue")
    for engine in work.engines:
        mine = work.canaries.of.setdefault(engine.worker, [])
        if counted(engine).held - work.before[engine.worker].held > len(mine):
            mine.append(canary)
            break
    for worker in [worker for worker, mine in work.canaries.of.items() if not mine]:
        del work.canaries.of[worker]
    return any(canary in mine for mine in work.canaries.of.values())


def _ended_otherwise(canary: HeldCanary, when: str) -> CannotLook:
    """A canary that its path has ended says nothing of the watchdog."""
    said = f"HTTP {canary.status}" if canary.status is not None else "no answer"
    return CannotLook(
        f"the canary {canary.rid} ended {when}, and not by the watchdog: {said}",
        why=printable(canary.text[:300]) or None,
        hint="a request has to get through first: `dsv4ctl status`, `dsv4ctl probe`",
    )


def _fires(work: Verifying, within_s: float) -> Facts:
    sent = work.canaries.sent
    try:
        work.wait(
            lambda: all(canary.ended for canary in sent), within_s, f"the watchdog to end {len(sent)} held canaries"
        )
    except DeadlineExceeded as error:
        still = [engine.worker for engine in work.engines if _stands_still(work, engine)]
        words = f"the scheduler of {' and '.join(still)} stands still" if still else None
        raise DeadlineExceeded(error.what, why=words, hint="`dsv4ctl doctor`, `dsv4ctl logs prefill`") from error
    for canary in sent:
        if ENDED not in canary.text:
            raise _ended_otherwise(canary, f"after {canary.seconds:.1f} s")
    return {"clients_waited_s": {canary.rid: round(canary.seconds, 3) for canary in work.canaries.sent}}


def _stands_still(work: Verifying, engine: "PrefillEngine") -> bool:
    """Whether a worker publishes nothing any more: its HTTP process answers all the same."""
    before = [load.published_at for load in engine.loads()]
    work.sleep(_PUBLISHED_WITHIN_S)
    return [load.published_at for load in engine.loads()] == before


def _answer(work: Verifying) -> Facts:
    ages = {}
    timeout_s = work.proof.timeout_s
    for canary in work.canaries.sent:
        said = printable(canary.text)
        if ENDED not in said or (found := _AGE.search(said)) is None:
            raise VerificationFailed(
                f"the client of {canary.rid} was not told of the watchdog: HTTP {canary.status}", why=said[-400:]
            )
        ages[canary.rid] = age_s = float(found[1])
        if not timeout_s - _ROUNDING_S <= age_s <= timeout_s + TICK_S + _ROUNDING_S:
            raise VerificationFailed(
                f"{canary.rid} was ended after {age_s:g} s, and the timeout is {timeout_s:g} s",
                why=f"the watchdog has {TICK_S:g} s to notice: a pass of the scheduler took longer, or another timeout "
                "was in force",
            )
    return {"ended_after_s": ages, "said": printable(work.canaries.sent[0].text)[-400:]}


def _clean(work: Verifying, within_s: float) -> Facts:
    began_s = time.monotonic()
    try:
        work.wait(lambda: not _still_there(work), within_s, "the queues to be without the canary")
    except DeadlineExceeded as error:
        raise VerificationFailed(f"{within_s:g} s after the end of the canary there is {_still_there(work)}") from error
    facts: dict[str, object] = {"clean_after_s": round(time.monotonic() - began_s, 3)}
    others: dict[str, dict[str, int]] = {}
    for engine in work.engines:
        mine = len(work.canaries.of[engine.worker])
        seen = counted(engine)
        others[engine.worker] = left = seen.since(work.before[engine.worker])
        left["timeout"] = left.get("timeout", 0) - mine
        # At the timeout that is in force anyway, it ends what is pinned anyway.
        if work.proof.changes and (more := seen.fires - work.before[engine.worker].fires - mine) > 0:
            raise VerificationFailed(
                f"the watchdog of {engine.worker} ended {more} other request{'s' if more > 1 else ''} meanwhile",
                why=f"they had been in the queue for {work.proof.timeout_s:g} s: pinned, or slow",
                hint="`dsv4ctl watch-inflight` tells pinned requests from slow ones",
            )
    facts["others"] = others
    return facts


def _still_there(work: Verifying) -> str:
    """Where something of the canaries is left, in words; empty where nothing is."""
    for engine in work.engines:
        now, before = counted(engine), work.before[engine.worker]
        if now.held > before.held:
            return f"a held canary in the queue of {engine.worker}"
        if now.settling > before.settling:
            return f"{now.settling} ended requests whose pages {engine.worker} keeps"
    for decode in work.decodes:
        if (held := decode_holds(decode)) > work.holds_before[decode.worker]:
            return f"{held:g} ended requests whose pages {decode.worker} keeps"
    return ""


def decode_holds(decode: DecodeEngine) -> float:
    """How many ended requests' pages a decode worker keeps; 0 where it does not tell.

    Raises:
        CannotLook
    """
    import httpx

    from dsv4ctl.metrics.exposition import Unreadable, parse_exposition

    try:
        return parse_exposition(decode.client.get(f"{decode.url}/metrics").text).total(DECODE_HOLDS) or 0.0
    except (httpx.HTTPError, Unreadable) as error:
        raise CannotLook(
            f"{decode.worker} does not tell its metrics", why=str(error) or type(error).__name__
        ) from error


def _told(work: Verifying, worker: str, within_s: float) -> Facts:
    engine = work.engine(worker)
    mine = work.canaries.of[worker]
    lines = _log_lines(work, engine, [canary.rid for canary in mine], within_s)
    fires = (engine.metrics().total(FIRES) or 0.0) - work.fires_before[worker]
    if fires < len(mine):
        raise VerificationFailed(f"{FIRES} of {worker} rose by {fires:g}, and {len(mine)} canaries were ended")
    return {"log": lines, "counter_rose_by": fires}


def _log_lines(work: Verifying, engine: "PrefillEngine", rids: Sequence[str], within_s: float) -> list[str]:
    place = work.fleet[engine.host]
    source = place.supervisor.log(engine.unit)
    found: dict[str, str] = {}
    with ExitStack() as exits:
        stream = exits.enter_context(place.host.follow(source, tail_lines=_LINES))

        def all_there() -> bool:
            while (line := stream.readline(_LINE_WITHIN_S)) is not None:
                for rid in rids:
                    if f"dsv4 {ENDED} rid={rid} " in line:
                        found[rid] = without_colours(line)
                if len(found) == len(rids):
                    break
            return len(found) == len(rids)

        try:
            work.wait(all_there, within_s, "the lines of the log")
        except DeadlineExceeded as error:
            where = source.path if isinstance(source, FileLog) else source
            raise VerificationFailed(
                f"the log of {engine.worker} on {engine.host} has no line of {len(rids) - len(found)} fires",
                why=f"it was looked for in the last {_LINES} lines of {where}",
            ) from error
    return [found[rid] for rid in rids]


def _restore(work: Verifying, worker: str) -> Facts:
    engine = work.engine(worker)
    now = engine.end_lease()
    work.shortened.remove(engine)
    if now.timeout_s != work.standing_s[worker]:
        raise VerificationFailed(
            f"{worker} has {now.timeout_s:g} s in force, and had {work.standing_s[worker]:g} s before",
            why="somebody else changed it meanwhile",
        )
    return {"timeout_s": now.timeout_s}


@contextmanager
def putting_back(work: Verifying, warn: Callable[[str], None]) -> "Iterator[None]":
    """Around the verification: whatever ends it early, the engines are put back, and what became of each is told."""
    try:
        yield
    finally:
        for sentence in work.put_back():
            warn(sentence)
