"""One run of `tune-timeout --verify`: look, choose, ask, prove, put back, say what was proven."""

import random
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from dsv4ctl.chain import read_chain
from dsv4ctl.errors import ExitCode, Refused, UsageError
from dsv4ctl.journal import Journal, utc_now
from dsv4ctl.live import LiveView
from dsv4ctl.locks import hold_lock
from dsv4ctl.plan import Timed, execute
from dsv4ctl.restart.patch_table import running_table
from dsv4ctl.restart.plan import plan_rows
from dsv4ctl.restart.view import plan_lines, report_rows
from dsv4ctl.tuning.control import PrefillEngine, prefill_engines, standing
from dsv4ctl.tuning.held_canary import PATCH
from dsv4ctl.tuning.short import Short, short_timeout
from dsv4ctl.tuning.since_start import read_since_start
from dsv4ctl.tuning.verify_plan import Proof, verify_plan
from dsv4ctl.tuning.verifying import DecodeEngine, VerifyAction, Verifying, decode_holds, putting_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4ctl.console import Console
    from dsv4ctl.signals import Interrupts
    from dsv4ctl.state import WorkerRecord
    from dsv4ctl.targets import Target

COMMAND = "tune-timeout"
_CLIENT_MARGIN_S = 30.0


def verify(
    console: "Console", target: "Target", interrupts: "Interrupts", *, asked_s: float | None, yes: bool, dry_run: bool
) -> ExitCode:
    """Prove that the watchdog of every prefill worker fires, with a canary that is pinned on purpose.

    Raises:
        Refused: canaries cannot be held, requests are too slow for a short timeout, or the person said no.
        VerificationFailed, DeadlineExceeded: it did not fire, or something of the canary is left.
        Interrupted, CannotLook, HostUnreachable
    """
    with ExitStack() as exits:
        if not dry_run:
            for place in target.fleet.values():
                path = place.store.lock_path(target.name)
                exits.enter_context(hold_lock(place.host, path, f"{COMMAND} --verify"))
        engines = exits.enter_context(prefill_engines(target))
        decodes = _decodes(exits, target)
        for decode in decodes:
            # One that is not there would be found out by a canary, and is no fault of the watchdog.
            decode_holds(decode)
        in_force_s = standing(engines)
        _check_holding(engines)
        short = _short(target, engines, max(in_force_s.values()), asked_s)
        changes = set(in_force_s.values()) != {short.seconds}
        entry, router = _router(target)
        proof = Proof([(one.worker, one.host) for one in engines], entry, short.seconds, changes)
        steps = verify_plan(proof)
        names = ", ".join(engine.worker for engine in engines)
        console.say(f"{names}: T = {_of(in_force_s)} in force; to be verified with {short.seconds:g} s: {short.why}")
        if dry_run:
            if not console.machine:
                for line in plan_lines(steps):
                    console.say(line)
            console.result({"stack": target.name, "applied": False, "steps": plan_rows(steps)})
            return ExitCode.OK
        if changes:
            console.confirm(
                f"Have {names} use {short.seconds:g} s for about {proof.fires_within_s:.0f} s, and pin a canary?",
                yes=yes,
                check=interrupts.check,
            )
        place = target.fleet[entry]
        client = exits.enter_context(place.host.http(timeout_s=proof.hold_s + _CLIENT_MARGIN_S))
        url, model = f"http://{router.listen}:{router.port}", target.records[0][1].served_model
        work = Verifying(
            proof=proof,
            engines=engines,
            decodes=decodes,
            fleet=target.fleet,
            send=lambda canary: canary.send(client, url, model, engines[0].keys),
            sleep=interrupts.sleep,
            rng=random.SystemRandom(),
            standing_s=in_force_s,
        )
        journal = Journal(place.host, place.store.journal_directory(target.name), COMMAND)
        journal.write(
            "verify", stack=target.name, in_force_s=in_force_s, timeout_s=short.seconds, lease_s=proof.lease_s
        )
        began = utc_now()
        with putting_back(work, console.warn), LiveView(console) as view:
            timeline = execute(
                steps,
                lambda step: VerifyAction(work, step),
                journal=journal,
                interrupts=interrupts,
                report=view.report,
            )
        words = proven(target.name, engines, timeline, proof, in_force_s, began)
        if not console.machine:
            console.data(words)
        console.result(
            {
                "stack": target.name,
                "proof": asdict(proof),
                "in_force_s": in_force_s,
                "steps": report_rows(timeline),
                "proven": words,
            }
        )
    return ExitCode.OK


def _short(target: "Target", engines: "Sequence[PrefillEngine]", in_force_s: float, asked_s: float | None) -> Short:
    return short_timeout(read_since_start(target, engines), read_chain(target).timers, in_force_s, asked_s)


def _decodes(exits: ExitStack, target: "Target") -> list[DecodeEngine]:
    return [
        DecodeEngine(
            worker.name,
            f"http://{worker.listen}:{worker.port}",
            exits.enter_context(target.fleet[host].host.http(timeout_s=_CLIENT_MARGIN_S)),
        )
        for host, record in target.records
        for worker in record.workers
        if worker.role == "decode"
    ]


def proven(
    stack: str,
    engines: "Sequence[PrefillEngine]",
    timeline: "Sequence[Timed]",
    proof: Proof,
    in_force_s: "dict[str, float]",
    began: datetime,
) -> str:
    """What was proven, when and on which build, as a paragraph to be pasted."""
    facts = {timed.step.id: timed.facts for timed in timeline}
    ages = facts["answer"]["ended_after_s"].values()
    others = facts["clean"]["others"]
    through = sum(left.get("success", 0) for left in others.values())
    ended = sum(left.get("timeout", 0) for left in others.values())
    waited_s = max(facts["fires"]["clients_waited_s"].values())
    names = ", ".join(f"{engine.worker} on {engine.host}" for engine in engines)
    builds = ", ".join(sorted({engine.version() for engine in engines}))
    many = len(ages) > 1
    canaries = f"{len(ages)} canaries, held in their queues, were" if many else "A canary, held in its queue, was"
    after = f"{min(ages):.1f} to {max(ages):.1f} s" if many else f"{next(iter(ages)):.1f} s"
    back = f"; {_of(in_force_s)} is in force again, read back" if proof.changes else ""
    return (
        f"{began:%Y-%m-%d %H:%M} UTC, stack {stack}: the inflight watchdog of {names} fires (SGLang {builds}, dsv4ctl "
        f"{version('dsv4ctl')}). {canaries} ended after {after} with the timeout at {proof.timeout_s:g} s; the client "
        f"was told so after {waited_s:.1f} s in all, log and counter have it; {facts['clean']['clean_after_s']:g} s "
        f"later neither prefill's queue nor decode had anything of it. Meanwhile {through} other "
        f"request{'' if through == 1 else 's'} got through that queue and {ended or 'none'} "
        f"{'were' if ended else 'was'} ended by the watchdog{back}."
    )


def _check_holding(engines: "Sequence[PrefillEngine]") -> None:
    for engine in engines:
        if (status := running_table(engine.client, engine.url).get(PATCH)) != "applied":
            raise Refused(
                f"{engine.worker} on {engine.host} holds no canary: its patch {PATCH} is {status or 'not there'}",
                why="SGLANG_DSV4_ALLOW_HOLD is not set there: whoever may choose the id of a request could hold one",
                hint="`dsv4ctl co-restart --role-set prefill:SGLANG_DSV4_ALLOW_HOLD=1`, where you trust your clients",
            )


def _router(target: "Target") -> "tuple[str, WorkerRecord]":
    for host, record in target.records:
        for worker in record.workers:
            if worker.role == "router":
                return host, worker
    raise UsageError(f"{target.name} has no router, through which a client would come", hint="name another stack")


def _of(in_force_s: "dict[str, float]") -> str:
    return " and ".join(f"{seconds:g} s" if seconds else "no limit" for seconds in sorted(set(in_force_s.values())))
