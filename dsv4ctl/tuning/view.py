"""What a person is shown: the evidence, the chain of timers, and the recommendation, each figure with how it comes."""

from collections.abc import Iterator, Sequence

from dsv4ctl.console import Column, Console
from dsv4ctl.live import age_text
from dsv4ctl.timers import TICK_S, Timer
from dsv4ctl.tuning.bound import CONFIDENCE, Bound, NoBound
from dsv4ctl.tuning.dwells import History
from dsv4ctl.tuning.recommend import DAY_S, Cost, Recommendation, held_by_a_pin
from dsv4ctl.tuning.recordings import recorded_lines
from dsv4ctl.tuning.strata import judged
from dsv4ctl.tuning.strata_view import COLUMNS, stratum_lines, stratum_rows
from dsv4ctl.tuning.window import Measured

DWELLS = (
    Column("time in the queue"),
    Column("requests", right=True),
    Column("longer than that", right=True),
    Column("share", right=True),
)
TIMERS = (
    Column(""),
    Column("timer", fold=True),
    Column("worker"),
    Column("in force", right=True),
    Column("source"),
    Column("set by", fold=True),
)


def dwell_rows(history: History) -> list[list[str]]:
    """One row a bucket that has requests in it, and one for those that were ended early."""
    rows: list[list[str]] = []
    for at, edge in enumerate(history.edges):
        inside = sum(block.counts[at] for block in history.blocks)
        if inside:
            above = sum(history.above(at))
            rows.append([f"up to {edge:g} s", str(inside), str(above), f"{above / history.requests:.3%}"])
    beyond = sum(block.counts[-1] for block in history.blocks)
    if beyond:
        rows.append([f"longer than {history.edges[-1]:g} s", str(beyond), "", ""])
    if history.ended:
        rows.append(["ended early", str(history.ended), "", ""])
    return rows


def timer_rows(timers: Sequence[Timer]) -> list[list[str]]:
    """The chain, from the innermost timer to the outermost."""
    order = "HTSWBR"
    chain = sorted(timers, key=lambda timer: (order.index(timer.letter), timer.worker))
    return [[timer.letter, timer.what, timer.worker, _seconds(timer), timer.source, timer.set_by] for timer in chain]


def _seconds(timer: Timer) -> str:
    return "off" if timer.seconds is None else f"{timer.seconds:g} s"


def evidence_lines(measured: Measured, bound: Bound | NoBound) -> Iterator[str]:
    """What the bound rests on, so that it can be computed again."""
    history = measured.history
    yield (
        f"{history.requests} requests left the queue in {age_text(history.seconds)} "
        f"({len(history.blocks)} blocks), {history.ended} of them ended early"
    )
    yield from recorded_lines(measured.recordings)
    if measured.restarts:
        yield f"started in the window, which begins anew with that: {', '.join(measured.restarts)}"
    if measured.looks:
        yield f"decode had requests waiting for its pages at {measured.waiting} of {measured.looks} looks"
    else:
        yield "decode did not tell whether requests waited for its pages"
    if isinstance(bound, NoBound):
        yield f"no bound: {bound.why}"
        if bound.missing is not None and history.requests and history.seconds:
            wait_s = bound.missing / (history.requests / history.seconds)
            yield f"{bound.missing} more requests are needed: {age_text(wait_s)} more at this rate"
        return
    yield (
        f"slow requests come together, so {bound.requests} are worth {bound.samples} independent ones "
        f"(design effect {bound.worth.effect:.2f}); the halves of the window are {abs(bound.worth.drift):.1f} standard "
        "errors apart"
    )
    yield (
        f"of these, {bound.may_exceed} may be longer than a value that bounds the {bound.quantile:.1%} quantile with "
        f"{bound.confidence:.0%}: {bound.seconds:g} s is that bound, with {bound.above} longer ones"
    )


def cost_lines(cost: Cost, measured: Measured) -> Iterator[str]:
    """Both costs of one timeout."""
    history = measured.history
    rate = history.requests / history.seconds
    yield (
        f"T = {cost.seconds:g} s would have ended {cost.longer} of {history.requests}: {cost.share:.3%} at most, with "
        f"{CONFIDENCE:.0%}; at {rate:.2f} requests/s that is {cost.per_day:.1f} false aborts a day at most "
        f"({cost.share:.3g} x {rate:.2f} x {DAY_S:.0f})"
    )
    if measured.prompt_tokens is not None and measured.pool_tokens:
        mean, largest = measured.prompt_tokens
        held, share = held_by_a_pin(cost.seconds, mean, measured.pool_tokens)
        of_largest = min(1.0, largest / measured.pool_tokens)
        yield (
            f"a pin holds its KV for {cost.seconds:g} + {TICK_S:g} s: for the mean prompt of {mean:.0f} tokens "
            f"{share:.1%} of prefill's {measured.pool_tokens:.0f} ({held:.0f} token-seconds), for the "
            f"largest (up to {largest:g}) {of_largest:.1%} at most"
        )


def show(console: Console, measured: Measured, bound: Bound | NoBound, timers: Sequence[Timer]) -> None:
    """The evidence, of all requests and by strata, and the chain."""
    console.table(DWELLS, dwell_rows(measured.history))
    for line in evidence_lines(measured, bound):
        console.data(line)
    strata = judged(measured.strata)
    if rows := stratum_rows(strata):
        console.table(COLUMNS, rows)
    for line in stratum_lines(measured, strata):
        console.data(line)
    console.table(TIMERS, timer_rows(timers))


def show_recommendation(console: Console, found: Recommendation, measured: Measured) -> None:
    """What to set, why, and what it costs."""
    console.data(
        f"recommended: T = {found.cost.seconds:g} s, the next round number that is {'; '.join(found.at_least)}"
    )
    for line in cost_lines(found.cost, measured):
        console.data(line)
