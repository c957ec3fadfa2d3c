"""One run of `dsv4ctl probe`: find the hops, ask first where it is a lot, ask them, judge, report."""

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4ctl.console import Console
from dsv4ctl.engine_keys import headers_of
from dsv4ctl.errors import ExitCode, Interrupted, NothingRunning, Refused, UsageError
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.hosts.connect import LOCAL, open_host
from dsv4ctl.probe.conduct import Conduct, Questions, Record, most_requests, questions_of
from dsv4ctl.probe.hops import Caller, Hop, Place, covering, on_cpu, stack_hops, via_hops
from dsv4ctl.probe.link import Endpoint
from dsv4ctl.probe.outcome import Exchange
from dsv4ctl.probe.report import (
    ROUND_COLUMNS,
    WALK_COLUMNS,
    engine_words,
    findings_of,
    habit_of,
    round_rows,
    slowness,
    walk_rows,
)
from dsv4ctl.probe.tally import HopTally, tally
from dsv4ctl.probe.verdict import Kind, Verdict, cut_short, judge
from dsv4ctl.probe.view import ProbeView
from dsv4ctl.probe.wire import Dialler
from dsv4ctl.probe.workers import worker_words
from dsv4ctl.profile.here import load_here
from dsv4ctl.profile.schema import Canary
from dsv4ctl.signals import Interrupts, interruptible
from dsv4ctl.targets import Target, open_target

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

ASK_ABOVE = 50
_WORKER_WITHIN_S = 5.0
_OURS = frozenset({"model", "messages", "stream", "stream_options"})


@dataclass(frozen=True)
class Wanted:
    """What the command line says. None: as the profile has it."""

    profile: str | None
    vias: tuple[str, ...]
    rounds: int
    concurrency: int
    gaps_s: tuple[float, ...]
    grow_tokens: int
    hang_after_s: float | None
    model: str | None
    api_key_file: Path | None
    request: str | None
    yes: bool


@dataclass(frozen=True)
class _Path:
    """The way of a request: its hops, the hosts that ask them, and what is known of the model there."""

    name: str
    hops: tuple[Hop, ...]
    hosts: Mapping[str, "Host"]
    model: str
    canary: Canary
    harmless: bool


def run_probe(console: Console, wanted: Wanted) -> ExitCode:
    """Ask every hop and say which is at fault.

    Returns:
        OK, FAILED, UNREACHABLE (a hop could not be looked at), INCONCLUSIVE or INTERRUPTED, after what was found by
        then was shown.

    Raises:
        NothingRunning: there is no stack, and no --via.
        Refused: it would be many requests to something that people may be using.
    """
    with interruptible() as interrupts, _open_path(wanted) as path:
        console.target = path.name
        questions = _questions(wanted, path)
        conversed = covering(path.hops)
        _consent(console, wanted, path, most_requests(questions, len(path.hops), len(conversed)), interrupts.check)
        view = ProbeView(console, [hop.name for hop in path.hops])
        record = Record(view.tell)
        interrupted = False
        with _diallers(path, interrupts) as endpoint_of, view:
            rng = random.SystemRandom()
            conduct = Conduct(questions, lambda hop: Caller(hop, endpoint_of, rng), record, interrupts, rng)
            try:
                view.say(f"asking {', '.join(hop.name for hop in path.hops)} for a small and a large generation each")
                conduct.walk(path.hops)
                if questions.rounds:
                    talkative = conduct.talkative(conversed)
                    view.say(_rounds_words(questions, talkative))
                    if questions.rounds <= len(questions.gaps_s):
                        last = questions.gaps_s[questions.rounds - 1 :]
                        console.warn(
                            f"{questions.rounds} rounds do not come to the gaps {', '.join(f'{gap:g}' for gap in last)}"
                        )
                    conduct.converse(talkative)
            except Interrupted:
                interrupted = True
        asked = {exchange.hop for exchange in record.exchanges}
        tallies = {hop.name: tally(hop.name, record.exchanges) for hop in path.hops if hop.name in asked}
        workers: dict[str, str] = {}
        if not interrupted:
            try:
                workers = _workers(path, tallies, interrupts)
            except Interrupted:
                interrupted = True
        verdict = judge(path.hops, tallies, workers)
        verdict = cut_short(verdict) if interrupted else verdict
        if caution := slowness(record.exchanges, questions.patience_s):
            console.warn(caution)
        return _report(console, path, record, tallies, verdict, interrupted=interrupted)


def _rounds_words(questions: Questions, hops: Sequence[Hop]) -> str:
    if not hops:
        return "no hop answers, so there is nobody to talk with"
    each = f"{questions.concurrency} conversation{'s' if questions.concurrency > 1 else ''}"
    turns = [questions.gaps_s[at % len(questions.gaps_s)] for at in range(questions.rounds - 1)]
    gaps = ", ".join(f"{gap:g}" for gap in dict.fromkeys(turns)) or "0"
    return (
        f"then {each} of {questions.rounds} rounds on kept connections and as many on fresh ones, "
        f"with {', '.join(hop.name for hop in hops)}, and gaps of {gaps} s; at least {sum(turns):g} s"
    )


@contextmanager
def _open_path(wanted: Wanted) -> Iterator[_Path]:
    vias = via_hops(wanted.vias)
    with ExitStack() as stack:
        target = _target(stack, wanted)
        hosts = {name: place.host for name, place in target.fleet.items()} if target is not None else {}
        if LOCAL not in hosts:
            hosts[LOCAL] = open_host(LOCAL)
            stack.callback(hosts[LOCAL].close)
        records = target.records if target is not None else ()
        model = wanted.model or (records[0][1].served_model if records else None)
        if model is None:
            raise UsageError("without a stack of ours nobody knows the model's name", hint="give it with --model")
        hops = (*vias, *stack_hops(records, len(vias)))
        loopback = all(_loopback(place) for hop in hops for place in hop.places)
        yield _Path(
            name=target.name if target is not None else ", ".join(hop.name for hop in vias),
            hops=hops,
            hosts=hosts,
            model=model,
            canary=_canary(target, wanted.profile),
            harmless=on_cpu(records) if records else loopback,
        )


def _target(stack: ExitStack, wanted: Wanted) -> Target | None:
    """The stack, or None where hops are named and no stack is known."""
    try:
        return stack.enter_context(open_target(wanted.profile, open_host))
    except NothingRunning:
        if wanted.profile or not wanted.vias:
            raise
    except UsageError:
        # Several stacks may be recorded here, none of them meant.
        if wanted.profile or not wanted.vias or not wanted.model:
            raise
    return None


def _canary(target: Target | None, ref: str | None) -> Canary:
    if target is not None:
        for name in (ref, target.records[0][1].profile):
            with suppress(UsageError):
                if name:
                    return load_here(name).profile.canary
        if on_cpu(target.records):
            return Canary(characters_per_token=1.0)
    return Canary()


def _loopback(place: Place) -> bool:
    host = place.url.split("://", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
    return place.host == LOCAL and (host in {"localhost", "[::1]"} or host.startswith("127."))


def _questions(wanted: Wanted, path: _Path) -> Questions:
    canary = path.canary
    single = questions_of(path.model, canary)
    request = dict(single.request)
    if wanted.request is not None:
        request |= _extra(wanted.request)
    return replace(
        single,
        grow=int(wanted.grow_tokens * canary.characters_per_token),
        patience_s=wanted.hang_after_s or canary.deadline_s,
        rounds=wanted.rounds,
        concurrency=wanted.concurrency,
        gaps_s=wanted.gaps_s,
        request=request,
        headers=headers_of(_api_key(wanted.api_key_file)),
    )


def _extra(text: str) -> dict[str, object]:
    try:
        extra = json.loads(text, parse_constant=_no_constant)
        json.dumps(extra, ensure_ascii=False).encode()
    except RecursionError as error:
        raise UsageError("--request is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"--request is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise UsageError("--request must be a JSON object", hint='for example {"seed": 1}')
    if ours := [key for key in extra if key in _OURS or key.startswith("bootstrap_")]:
        raise UsageError(
            f"--request holds {', '.join(sorted(ours))}, which the probe sets itself", hint="the model's name: --model"
        )
    return extra


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON's")


def _api_key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path} cannot be read", why=str(error)) from error
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise UsageError(f"--api-key-file {path} does not hold one key")
    return key


def _consent(console: Console, wanted: Wanted, path: _Path, most: int, check: Callable[[], None]) -> None:
    """Ask before many requests to something that people may be using."""
    if wanted.yes or path.harmless or most <= ASK_ABOVE:
        return
    question = f"Send up to {most} requests to {path.name}, which may be serving people?"
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused(f"{question} Nobody is at the terminal to answer.", hint="add --yes, or ask for fewer --rounds")
    console.confirm(question, yes=False, check=check)


@contextmanager
def _diallers(path: _Path, interrupts: Interrupts) -> Iterator[Callable[[Place], Endpoint]]:
    names = {place.host for hop in path.hops for place in hop.places}
    diallers = {name: Dialler(path.hosts[name], interrupts.check) for name in names}
    try:
        yield lambda place: Endpoint(place.name, place.url, diallers[place.host])
    finally:
        for dialler in diallers.values():
            dialler.close()


def _workers(path: _Path, tallies: Mapping[str, HopTally], interrupts: Interrupts) -> dict[str, str]:
    """What the schedulers of engines say whose requests failed.

    Raises:
        Interrupted
    """
    return {
        hop.name: worker_words(
            hop, lambda host, s: path.hosts[host].http(timeout_s=s), _WORKER_WITHIN_S, interrupts.sleep
        )
        for hop in path.hops
        if hop.engine and hop.name in tallies and tallies[hop.name].manner.broken
    }


def _report(
    console: Console,
    path: _Path,
    record: Record,
    tallies: Mapping[str, HopTally],
    verdict: Verdict,
    *,
    interrupted: bool,
) -> ExitCode:
    exchanges = record.exchanges
    if not console.machine:
        order = {hop.name: at for at, hop in enumerate(path.hops)}
        rows = walk_rows(sorted(exchanges, key=lambda exchange: order[exchange.hop]))
        console.table(WALK_COLUMNS, rows, title=f"{path.name}  model {path.model}")
        for line in engine_words(exchanges):
            console.data(line)
        if talked := round_rows(path.hops, tallies, exchanges):
            console.data("")
            console.table(ROUND_COLUMNS, talked)
            for each in tallies.values():
                if habit := habit_of(each):
                    console.data(habit)
        console.data("")
        console.data(verdict.sentence)
    for finding in findings_of(tallies.values(), exchanges, verdict):
        console.finding(finding)
    if interrupted and not console.machine:
        console.say("interrupted: this is what was found until then")
    error = Interrupted("interrupted: this is what was found until then") if interrupted else None
    console.result(_document(path, exchanges, tallies, verdict, interrupted=interrupted), error)
    return ExitCode.INTERRUPTED if interrupted else _exit(console.findings, verdict)


def _document(
    path: _Path,
    exchanges: Sequence[Exchange],
    tallies: Mapping[str, HopTally],
    verdict: Verdict,
    *,
    interrupted: bool,
) -> dict[str, object]:
    hops = [
        {
            "hop": hop.name,
            "depth": hop.depth,
            "urls": [place.url for place in hop.places],
            "asked_from": [place.host for place in hop.places],
            **asdict(tallies[hop.name]),
        }
        for hop in path.hops
        if hop.name in tallies
    ]
    return {
        "model": path.model,
        "verdict": verdict,
        "interrupted": interrupted,
        "hops": hops,
        "exchanges": exchanges,
    }


def _exit(findings: list[Finding], verdict: Verdict) -> ExitCode:
    if any(finding.severity is Severity.ERROR for finding in findings):
        return ExitCode.FAILED
    if verdict.kind is Kind.UNSEEN or any(finding.code == "HOP_UNSEEN" for finding in findings):
        return ExitCode.UNREACHABLE
    return ExitCode.INCONCLUSIVE if verdict.kind is Kind.INCONCLUSIVE else ExitCode.OK
