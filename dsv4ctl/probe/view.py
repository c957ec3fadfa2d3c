"""What a person sees while hops are asked: a live table at a terminal, a line for what matters elsewhere."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from dsv4ctl.console import Column, Console, make_table
from dsv4ctl.probe.outcome import Exchange
from dsv4ctl.probe.report import seconds

if TYPE_CHECKING:
    from rich.live import Live

_COLUMNS = (
    Column("hop", fold=True),
    Column("asked", right=True),
    Column("right", right=True),
    Column("failed", right=True),
    Column("last", fold=True),
)


class ProbeView:
    """A context manager; `tell` is called with each exchange, by one thread at a time."""

    def __init__(self, console: Console, hops: Sequence[str]) -> None:
        self._console = console
        self._hops = hops
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.live:
            from rich.live import Live

            self._live = Live(console=self._console.renderer(), auto_refresh=False, transient=True)
            self._live.__enter__()
            self._draw()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            with self._console.heard():
                self._live.__exit__(None, None, None)
            self._live = None

    def say(self, text: str) -> None:
        """Something that is about to happen."""
        if not self._console.machine:
            self._console.say(text)

    def tell(self, exchange: Exchange) -> None:
        """One question was put."""
        self._asked[exchange.hop] += exchange.seen
        self._failed[exchange.hop] += exchange.failed
        reply = exchange.reply
        self._last[exchange.hop] = reply.outcome.value if not exchange.failed else reply.detail
        self._console.event({"exchange": exchange})
        if self._live is None and not self._console.machine and (exchange.failed or not exchange.seen):
            self._console.say(f"{exchange.hop}: {_where(exchange)}: {reply.detail} ({seconds(reply.times.ended_s)})")
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        rows = [
            [
                hop.removeprefix("http://"),
                str(self._asked[hop]),
                str(self._asked[hop] - self._failed[hop]),
                str(self._failed[hop]),
                self._last.get(hop, "-"),
            ]
            for hop in self._hops
        ]
        with self._console.heard():
            self._live.update(make_table(_COLUMNS, rows), refresh=True)


def _where(exchange: Exchange) -> str:
    again = ", asked again" if exchange.again else ""
    if exchange.phase == "walk":
        return f"{exchange.characters} characters{again}"
    on = f"request {exchange.reply.nth} on its connection" if exchange.reused else "a fresh connection"
    gap = f", after {exchange.gap_s:g} s" if exchange.round > 1 and not exchange.again else ""
    return f"round {exchange.round}, {on}{gap}{again}"
