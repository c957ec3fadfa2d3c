"""A deep look from beginning to end: both sides of each pairing at the same time, here or over SSH."""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4ctl.doctor.deep.plan import CopyPlan, Pairing, SidePlan, copies, pairings
from dsv4ctl.doctor.deep.report import (
    CopyReport,
    DeepReport,
    PairingReport,
    Problem,
    parse_copies,
    parse_endings,
    parse_source,
)
from dsv4ctl.errors import Dsv4Error
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.restart.running import read_running
from dsv4ctl.serving_module import serving_argv, serving_input

if TYPE_CHECKING:
    from dsv4ctl.fleet import Fleet
    from dsv4ctl.hosts.base import Completed, Host
    from dsv4ctl.stack import Stack
    from dsv4ctl.state import StackRecord

# What the processes of a test know each other by (serving/transfer_test/rank.py).
WORD_VARIABLE = "DSV4_TRANSFER_TOKEN"

_FREE_PORT = "import socket, sys; print(socket.create_server((sys.argv[1], 0)).getsockname()[1])"
_PORT_WITHIN_S = 20.0
_COPYING = "copying from GPU"


@dataclass(frozen=True)
class Limits:
    """How much and how long. Each rank has one buffer of the largest size.

    The times: until all ranks of a pairing are there, for its test after that, for one write, for the copies of one
    host, and for a side to end after all of that.
    """

    sizes_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
    join_within_s: float = 60.0
    within_s: float = 180.0
    transfer_within_s: float = 10.0
    copies_within_s: float = 120.0
    end_within_s: float = 45.0


def engines_running(fleet: "Fleet", records: "Sequence[tuple[str, StackRecord]]") -> tuple[str, ...]:
    """The recorded engines of which something is alive, as `NAME on HOST`.

    Raises:
        HostUnreachable
    """
    return tuple(
        f"{one.name} on {one.host}"
        for one in read_running(fleet, records)
        if one.alive and one.record.role != ROUTER
    )  # fmt: skip


def run_deep(
    stack: "Stack",
    hosts: "Mapping[str, Host]",
    *,
    running: Sequence[str] = (),
    beside: bool = False,
    limits: Limits = Limits(),
    tell: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> DeepReport:
    """Move data between every prefill and every decode worker of a stack, and between the GPUs of each host.

    Args:
        stack: the plan; its workers need not run, and should not.
        hosts: by the stack's names for them.
        running: engines that run there now (see `engines_running`). With any, nothing is done unless `beside`.
        beside: the person said that it may be tested beside running engines.
        limits: bounds of memory and time.
        tell: gets a sentence before each part.
        check: called before each part; what it raises (Interrupted) ends the look.

    Returns:
        What was found. That something could not be tried is in it, and raises nothing.
    """
    if running and not beside:
        return DeepReport(
            why_nothing=f"{', '.join(running)} would be disturbed by it, and fill the memory that it takes"
        )
    planned, copied = pairings(stack), copies(stack)
    if not planned and not copied:
        return DeepReport(why_nothing=f"stack {stack.name} has no prefill and decode workers that exchange KV")
    found: list[PairingReport] = []
    copy_reports: list[CopyReport] = []
    for plan in copied:
        check()
        tell(f"copying between the GPUs {', '.join(plan.gpus)} of {plan.host}")
        copy_reports.append(_copy(hosts[plan.host], plan, limits))
    for pairing in planned:
        check()
        tell(f"writing from {pairing.name}")
        found.append(_transfer(hosts, pairing, limits, beside=bool(running)))
    return DeepReport(tuple(found), tuple(copy_reports))


def _transfer(hosts: "Mapping[str, Host]", pairing: Pairing, limits: Limits, *, beside: bool) -> PairingReport:
    if pairing.why_not:
        return PairingReport(pairing)
    source, destination = hosts[pairing.source.host], hosts[pairing.destination.host]
    try:
        port = _meeting_port(source, pairing, beside=beside)
    except (Dsv4Error, ValueError) as error:
        return PairingReport(pairing, problems=(Problem("unknown", f"no port to meet on: {error}"),))
    word = secrets.token_hex(16)
    meet = ("--meet", f"{pairing.address}:{port}")
    others = ("--others", str(len(pairing.destination.devices)))
    answers = side_by_side(
        lambda: _side(source, pairing.source, ("--side", "source", *meet, *others), word, limits),
        lambda: _side(destination, pairing.destination, ("--side", "destination", *meet), word, limits),
    )
    return _read(pairing, *answers)


def _read(pairing: Pairing, source: "Completed | Dsv4Error", destination: "Completed | Dsv4Error") -> PairingReport:
    problems: list[Problem] = []
    endings: Mapping[int, str] = {}
    try:
        endings = parse_endings(_text(destination))
    except (ValueError, KeyError, TypeError) as error:
        problems.append(Problem("unknown", f"the side of {pairing.destination.worker}: {_why(destination, error)}"))
    try:
        report = parse_source(pairing, _text(source), endings)
    except (ValueError, KeyError, TypeError) as error:
        problems.append(Problem("unknown", f"the side of {pairing.source.worker}: {_why(source, error)}"))
        return PairingReport(pairing, problems=tuple(problems))
    return PairingReport(**{**vars(report), "problems": (*report.problems, *problems)})


def _text(answer: "Completed | Dsv4Error") -> str:
    return "" if isinstance(answer, Dsv4Error) else answer.text


def _why(answer: "Completed | Dsv4Error", error: Exception) -> str:
    """Why a side has no report: what went wrong with it, the last that it said, or what is wrong with the report."""
    if isinstance(answer, Dsv4Error):
        return str(answer)
    if answer.stdout.strip():
        return str(error)
    lines = answer.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it exited with status {answer.returncode} and said nothing"


def _meeting_port(source: "Host", pairing: Pairing, *, beside: bool) -> int:
    """A free port; between hosts the one of the prefill worker's bootstrap, which the decode worker's host has to reach
    anyway, unless an engine may hold it."""
    if pairing.bootstrap_port is not None and not pairing.same_host and not beside:
        return pairing.bootstrap_port
    argv = [pairing.source.python, "-c", _FREE_PORT, pairing.address]
    return int(source.run(argv, deadline_s=_PORT_WITHIN_S).text)


def _side(host: "Host", side: SidePlan, words: Sequence[str], word: str, limits: Limits) -> "Completed | Dsv4Error":
    argv = serving_argv(
        side.python,
        (
            *("transfer", "--json", "--devices", *side.devices, *words),
            *("--sizes", *map(str, limits.sizes_bytes)),
            *("--join-within", f"{limits.join_within_s:g}", "--within", f"{limits.within_s:g}"),
            *("--transfer-within", f"{limits.transfer_within_s:g}"),
        ),
    )
    deadline_s = limits.join_within_s + limits.within_s + limits.end_within_s
    return _run(host, [*side.binding, *argv], {**side.env, WORD_VARIABLE: word}, deadline_s)


def _copy(host: "Host", plan: CopyPlan, limits: Limits) -> CopyReport:
    words = ("gpu-copies", "--json", "--devices", *map(str, range(len(plan.gpus))))
    argv = serving_argv(plan.python, (*words, "--within", f"{limits.copies_within_s:g}"))
    answer = _run(host, argv, plan.env, limits.copies_within_s + limits.end_within_s)
    try:
        return parse_copies(plan, _text(answer))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        said = "" if isinstance(answer, Dsv4Error) else answer.stderr.decode(errors="replace")
        begun = [line for line in said.splitlines() if line.startswith(_COPYING)]
        why = _why(answer, error)
        if begun and why == begun[-1]:
            # The kernel ended it: a copy that hangs lets nobody say anything.
            why = f"no end within {limits.copies_within_s:g} s"
        return CopyReport(plan, failure=f"{begun[-1]}: {why}" if begun else why, tried=bool(begun))


def _run(host: "Host", argv: Sequence[str], env: Mapping[str, str], deadline_s: float) -> "Completed | Dsv4Error":
    try:
        return host.run(argv, deadline_s=deadline_s, stdin=serving_input(env), check=False)
    except Dsv4Error as error:
        return error


def side_by_side(*calls: "Callable[[], Completed | Dsv4Error]") -> "list[Completed | Dsv4Error]":
    """Do them at the same time; what each returned, in their order.

    Their threads do not keep us when the person wants us to end now: the commands end with their threads.
    """
    found: dict[int, Completed | Dsv4Error] = {}
    faults: list[BaseException] = []

    def do(at: int) -> None:
        try:
            found[at] = calls[at]()
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=do, args=(at,), daemon=True) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return [found[at] for at in range(len(calls))]
