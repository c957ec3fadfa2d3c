"""What a person reads: the tables, and the findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from dsv4ctl.console import Column
from dsv4ctl.findings import Evidence, Finding, Severity
from dsv4ctl.probe.hops import Hop
from dsv4ctl.probe.outcome import CONTENT, ERRORS, HANGING, Act, Exchange, Outcome, Peer
from dsv4ctl.probe.tally import HopTally, Manner
from dsv4ctl.probe.verdict import Kind, Verdict

WALK_COLUMNS = (
    Column("hop", fold=True),
    Column("tokens", right=True),
    Column("connect", right=True),
    Column("1st byte", right=True),
    Column("1st token", right=True),
    Column("end", right=True),
    Column("result"),
)
_AT_ONCE_S = 0.2
ROUND_COLUMNS = (
    Column("hop", fold=True),
    Column("on"),
    Column("asked", right=True),
    Column("failed", right=True),
    Column("1st token", right=True),
    Column("failed/asked after a gap", fold=True),
)


def walk_rows(exchanges: Iterable[Exchange]) -> list[list[str]]:
    """A row for each single generation, nearest to the client first."""
    return [
        [
            exchange.hop.removeprefix("http://"),
            str(exchange.reply.prompt_tokens or ("small" if exchange.round == 1 else "large")),
            seconds(exchange.reply.times.connect_s),
            seconds(exchange.reply.times.first_byte_s),
            seconds(exchange.reply.times.first_token_s),
            seconds(exchange.reply.times.last_byte_s),
            exchange.reply.outcome.value,
        ]
        for exchange in exchanges
        if exchange.phase == "walk"
    ]


def round_rows(hops: Sequence[Hop], tallies: Mapping[str, HopTally], exchanges: Sequence[Exchange]) -> list[list[str]]:
    """Two rows for each hop that was talked with: later requests on a connection, and first ones."""
    rows: list[list[str]] = []
    for hop in hops:
        mine = [exchange for exchange in exchanges if exchange.hop == hop.name and exchange.phase == "rounds"]
        each = tallies.get(hop.name)
        if not mine or each is None:
            continue
        for word, count, by_gap in (
            ("reused", each.reused, each.reused_by_gap),
            ("fresh", each.fresh, each.fresh_by_gap),
        ):
            tokens = [
                exchange.reply.times.first_token_s
                for exchange in mine
                if exchange.reused == (word == "reused") and exchange.reply.times.first_token_s is not None
            ]
            rows.append(
                [
                    hop.name.removeprefix("http://"),
                    word,
                    str(count.asked),
                    str(count.failed),
                    seconds(median(tokens)) if tokens else "-",
                    ", ".join(f"{gap:g} s: {counted.failed}/{counted.asked}" for gap, counted in by_gap) or "-",
                ]
            )
    return rows


def engine_words(exchanges: Iterable[Exchange]) -> list[str]:
    """What prefill says of where its time went, a line for each pair: the large generation that came last."""
    last = {e.hop: e.prefill.engine_s for e in exchanges if e.phase == "walk" and e.prefill and e.prefill.engine_s}
    words = {
        "queue": "in its queue",
        "prefill": "computing",
        "after_prefill": "until its KV was gone",
        "total": "in all",
    }
    return [
        f"{hop}: prefill's half spent "
        + ", ".join(f"{seconds(times[name])} {word}" for name, word in words.items() if name in times)
        for hop, times in last.items()
    ]


def slowness(exchanges: Iterable[Exchange], patience_s: float) -> str | None:
    """A word of caution where a right answer came so late that a busy stack may be taken for one that hangs."""
    waits = [e.reply.times.first_token_s or 0.0 for e in exchanges if e.reply.outcome is Outcome.RIGHT]
    slowest = max(waits, default=0.0)
    if slowest <= patience_s / 2:
        return None
    return (
        f"a right answer began after {seconds(slowest)}, and --hang-after allows {patience_s:g} s: "
        "what is called hanging may be slow"
    )


def habit_of(tally: HopTally) -> str | None:
    """What a hop does with connections that lie idle, if it is seen to end them; that is no fault."""
    if tally.idle_close_s is not None:
        if tally.idle_close_s < _AT_ONCE_S:
            return f"{tally.hop} closes connections right after an answer"
        return f"{tally.hop} closes idle connections after {tally.idle_close_s:.1f} s, with notice"
    if tally.kept_by_gap and not tally.reused.asked:
        return f"{tally.hop} closes the connection after every answer, so none could be used again"
    return None


def seconds(value: float | None) -> str:
    """A time, short; `-` for one that did not come."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def peer_words(peer: Peer) -> str:
    """What the other side of the TCP connection did besides, and what cannot be seen of it."""
    words = {
        Act.NONE: "",
        Act.ANSWERED: "; the connection stayed open",
        Act.CLOSED: "" if peer.received_bytes else ", after our request had gone out",
        Act.RESET: "" if peer.received_bytes else ", after our request had gone out",
        Act.SILENT: "; it kept the connection open",
    }[peer.act]
    if peer.act is Act.SILENT and peer.acknowledged is not None:
        words += (
            ", and its TCP had taken the request"
            if peer.acknowledged
            else ", and its TCP had not even taken the request: packets are lost, or the host is gone"
        )
    if not peer.direct and peer.act is not Act.ANSWERED:
        words += " (seen through an SSH tunnel, where a reset looks like a close and acknowledgements are not seen)"
    return words


def findings_of(tallies: Iterable[HopTally], exchanges: Sequence[Exchange], verdict: Verdict) -> tuple[Finding, ...]:
    """What is wrong with each hop, the verdict's hop first."""
    found = [finding for each in tallies if (finding := _finding(each, exchanges, verdict)) is not None]
    found.sort(key=lambda finding: finding.evidence.get("hop") not in verdict.hops)
    if verdict.kind is Kind.INCONCLUSIVE and verdict.hops:
        found.append(_inconclusive(verdict))
    return tuple(found)


def _finding(tally: HopTally, exchanges: Sequence[Exchange], verdict: Verdict) -> Finding | None:
    unseen = next((e for e in exchanges if e.hop == tally.hop and not e.seen), None)
    if tally.manner is Manner.UNSEEN and unseen is not None:
        message = f"{tally.hop} could not be looked at: {unseen.reply.detail}"
        remedy = "check the URL, its name and the network; nothing is known about this hop"
        return Finding("HOP_UNSEEN", Severity.UNKNOWN, message, remedy, {"hop": tally.hop})
    if not tally.manner.broken:
        return None
    failed = [exchange for exchange in exchanges if exchange.hop == tally.hop and exchange.failed]
    # A wrong answer is worse than none, however seldom it is.
    wrong = [exchange for exchange in failed if exchange.reply.outcome in CONTENT]
    first = next(iter(wrong or [e for e in failed if e.reply.outcome is tally.main_failure]))
    evidence: dict[str, Evidence] = {
        "hop": tally.hop,
        "manner": tally.manner.value,
        "failed": tally.all.failed,
        "asked": tally.all.asked,
        "reused_failed": tally.reused.failed,
        "reused_asked": tally.reused.asked,
        "fresh_failed": tally.fresh.failed,
        "fresh_asked": tally.fresh.asked,
        "outcome": first.reply.outcome.value,
        "peer": first.reply.peer.act.value,
    }
    finding = _broken(tally, first, evidence)
    if verdict.maybe_slow and tally.manner is Manner.SOMETIMES and finding.code == "PROBE_HANGS":
        return replace(finding, severity=Severity.WARNING, remedy=f"it may only be slow: {verdict.unsettled} tells")
    if verdict.kind is Kind.FAULT and tally.hop not in verdict.hops and tally.manner is not Manner.REUSED:
        return replace(finding, remedy="see to the hop behind it first: this one may only pass its failure on")
    return finding


def _broken(tally: HopTally, first: Exchange, evidence: Mapping[str, Evidence]) -> Finding:
    outcomes = {outcome for outcome, _ in tally.failures}
    main = tally.main_failure
    manner, detail, peer = tally.manner.value, first.reply.detail, peer_words(first.reply.peer)
    kinds = ", ".join(f"{count} times {outcome}" for outcome, count in tally.failures)
    several = f"; {kinds}" if len(tally.failures) > 1 else ""
    message = f"{tally.hop} {manner} ({tally.all}{several}): {detail}{peer}"
    if tally.manner is Manner.REUSED:
        message = f"{tally.hop} {manner} ({tally.reused}, and {tally.fresh} on fresh ones): {detail}{peer}"
        remedy = "until it is repaired, have the client send `Connection: close` or open a connection for each request"
        return Finding("HOP_BREAKS_KEEPALIVE", Severity.ERROR, message, remedy, evidence)
    if outcomes & CONTENT:
        wrong = "a wrong answer means wrong KV, a wrong chat template or the wrong model: compare the hops"
        return Finding("PROBE_WRONG_ANSWER", Severity.ERROR, message, wrong, evidence)
    if main in HANGING:
        remedy = "`dsv4ctl status` and the log of this hop; what lies behind it is judged above"
        return Finding("PROBE_HANGS", Severity.ERROR, message, remedy, evidence)
    if main in ERRORS:
        remedy = "the error is the hop's own word or one that it passes on: its log tells which"
        return Finding("PROBE_ERROR", Severity.ERROR, message, remedy, evidence)
    remedy = "look in this hop's log for a limit on time or size, and for a restart"
    return Finding("PROBE_CUT_OFF", Severity.ERROR, message, remedy, evidence)


def _inconclusive(verdict: Verdict) -> Finding:
    remedy = f"to settle it: {verdict.unsettled}"
    evidence: dict[str, Evidence] = {"hops": ", ".join(verdict.hops)}
    message = f"whose fault it is that {' and '.join(verdict.hops)} fails is not known"
    return Finding("PROBE_INCONCLUSIVE", Severity.UNKNOWN, message, remedy, evidence)
