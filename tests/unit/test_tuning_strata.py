"""Strata of a window: counted with it, bounded each for itself, and what the recommendation makes of them."""

import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4ctl.console import Console, Output
from dsv4ctl.metrics.exposition import parse_exposition
from dsv4ctl.signals import Interrupts
from dsv4ctl.timers import timers_of
from dsv4ctl.tuning import session
from dsv4ctl.tuning.bound import Bound, NoBound, bound_of
from dsv4ctl.tuning.dwells import Block, History
from dsv4ctl.tuning.recommend import MARGIN, Recommendation, recommend
from dsv4ctl.tuning.scrapes import Counted
from dsv4ctl.tuning.strata import NAMES, Judged, Largest, Stratum, judged, largest_of, of_all, outruns
from dsv4ctl.tuning.strata_view import strata_as_data, stratum_lines, stratum_rows, unfounded_lines
from dsv4ctl.tuning.window import Measured
from serving.telemetry import ENDED, STRATA

EDGES = (0.1, 1.0, 10.0, 100.0)
Counts = Sequence[int]


def exposition(whole: Counts, **strata: tuple[Counts, Counts]) -> str:
    """As prefill exports it: those that arrived, by bucket, and of each stratum those that arrived and those that were
    ended early."""

    def lines(name: str, labels: str, counts: Counts) -> list[str]:
        below = 0
        found = []
        for edge, count in zip((*EDGES, "+Inf"), counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{{labels},le="{edge}"}} {below}')
        return found

    whole_name, name = "dsv4_inflight_dwell_seconds", "dsv4_inflight_dwell_by_stratum_seconds"
    text = [f"# TYPE {whole_name} histogram", *lines(whole_name, 'outcome="success"', whole)]
    text.append(f"# TYPE {name} histogram")
    for stratum, both in strata.items():
        for ended, counts in zip(ENDED, both, strict=True):
            text += lines(name, f'stratum="{stratum}",ended="{ended}"', counts)
    return "\n".join(text) + "\n"


NONE = (0, 0, 0, 0, 0)


def counted(*scrapes: str) -> Counted:
    found = Counted("prefill-0")
    for number, text in enumerate(scrapes):
        found.look(parse_exposition(text), 5.0 * number)
    return found


def stratum(name: str, *blocks: tuple[Counts, Counts]) -> Stratum:
    """By those that arrived and those that were ended early, in each block."""
    return Stratum(
        name,
        History(EDGES, tuple(Block(5.0, tuple(arrived), sum(early)) for arrived, early in blocks)),
        History(EDGES, tuple(Block(5.0, tuple(early)) for _, early in blocks)),
    )


def steady(name: str, arrived: Counts, blocks: int = 60) -> Stratum:
    return stratum(name, *[(arrived, NONE)] * blocks)


def measured(strata: Sequence[Stratum], whole: History | None = None) -> Measured:
    return Measured(
        history=whole or whole_of(strata),
        in_force_s={},
        restarts=(),
        waiting=0,
        looks=0,
        prompt_tokens=None,
        pool_tokens=None,
        strata=tuple(strata),
    )


def whole_of(strata: Sequence[Stratum]) -> History:
    """All of them together."""
    same = zip(*(one.history.blocks for one in strata), strict=True)
    return History(
        EDGES,
        tuple(
            Block(5.0, tuple(map(sum, zip(*(b.counts for b in blocks), strict=True))), sum(b.ended for b in blocks))
            for blocks in same
        ),
    )


def bounded(history: History) -> Bound:
    found = bound_of(history)
    assert isinstance(found, Bound)
    return found


def test_the_tool_knows_the_strata_of_the_engine_and_their_order() -> None:
    assert tuple(NAMES) == STRATA


def test_strata_are_counted_block_by_block_with_the_whole() -> None:
    found = counted(
        exposition((5, 0, 0, 0, 0), first=((1, 0, 0, 0, 0), NONE), more=(NONE, (1, 0, 0, 0, 0))),
        exposition((9, 1, 0, 0, 0), first=((1, 1, 0, 0, 0), NONE), more=((4, 0, 0, 0, 0), (1, 0, 2, 0, 0))),
        exposition((9, 1, 0, 0, 0), first=((1, 1, 0, 0, 0), NONE), more=((4, 0, 0, 0, 0), (1, 0, 2, 0, 0))),
    )
    assert found.strata == (
        stratum("first", ((0, 1, 0, 0, 0), NONE), (NONE, NONE)),
        stratum("more", ((4, 0, 0, 0, 0), (0, 0, 2, 0, 0)), (NONE, NONE)),
    )
    assert [len(one.history.blocks) for one in found.strata] == [len(found.blocks)] * 2


def test_a_start_in_the_window_begins_the_strata_anew_as_well() -> None:
    found = counted(
        exposition((50, 0, 0, 0, 0), first=((2, 0, 0, 0, 0), NONE)),
        exposition((3, 0, 0, 0, 0), first=((1, 0, 0, 0, 0), NONE)),
        exposition((4, 0, 0, 0, 0), first=((1, 0, 1, 0, 0), NONE)),
    )
    assert found.restarts == 1
    assert found.strata == (stratum("first", ((0, 0, 1, 0, 0), NONE)),)


def test_an_older_engine_has_none_and_is_named() -> None:
    assert counted(exposition((1, 0, 0, 0, 0)), exposition((2, 0, 0, 0, 0))).strata == ()
    assert of_all([(steady("first", (1, 0, 0, 0, 0)),), ()]) == ()
    without = replace(measured([], History(EDGES, ())), without_strata=("prefill-0",))
    (said,) = stratum_lines(without, ())
    assert said.startswith("no strata: prefill-0 does not count by the KV of requests")


def test_what_an_engine_counts_that_nobody_knows_comes_last() -> None:
    found = counted(*[exposition(NONE, later=(NONE, NONE), more=(NONE, NONE), first=(NONE, NONE))] * 2)
    assert [one.name for one in found.strata] == ["first", "more", "later"]


def test_workers_that_are_looked_at_together_have_their_strata_together() -> None:
    (found,) = of_all(
        [(steady("more", (1, 0, 0, 0, 0)),), (stratum("more", *[((0, 1, 0, 0, 0), (0, 1, 0, 0, 0))] * 3),)]
    )
    assert found == stratum("more", *[((1, 1, 0, 0, 0), (0, 1, 0, 0, 0))] * 3)


def test_long_transfers_are_not_drowned_by_many_short_ones() -> None:
    """One in a hundred is long: the bound on 99 % of all leaves them out, and that on their own does not."""
    short, long = steady("up_to_1MiB", (600, 0, 0, 0, 0)), steady("up_to_4GiB", (0, 0, 5, 0, 0))
    seen = judged([short, long])
    whole = bound_of(whole_of([short, long]), quantiles=(0.99,))
    assert isinstance(whole, Bound)
    assert whole.seconds == 0.1
    largest = largest_of(whole, seen)
    assert (largest.stratum, largest.bound.seconds) == ("up_to_4GiB", 10.0)
    chain = (*timers_of("p", "prefill", {}, ()), *timers_of("d", "decode", {}, ()))
    found = recommend(whole_of([short, long]), whole, chain, largest)
    assert isinstance(found, Recommendation)
    assert found.cost.seconds == 30.0
    assert found.at_least[0] == "3 times the bound of 10 s of the stratum 'up to 4 GiB'"


def test_the_whole_counts_where_no_stratum_has_a_larger_bound() -> None:
    whole = bounded(whole_of([steady("more", (10, 0, 0, 0, 0))]))
    assert largest_of(whole, judged([steady("more", (10, 0, 0, 0, 0))])) == Largest(whole)
    assert largest_of(whole, judged([steady("more", (1, 0, 0, 0, 0))])) == Largest(whole)


def judgement(one: Stratum) -> Judged:
    (found,) = judged([one])
    assert isinstance(found.bound, NoBound)
    return found


@pytest.mark.parametrize(
    ("blocks", "timeout_s", "speaks"),
    [
        # Three requests, all within the bound.
        ([((3, 0, 0, 0, 0), NONE)], 5.0, False),
        # One of three above it, which one in a hundred would be; and it is far below the timeout.
        ([((2, 0, 1, 0, 0), NONE)], 5.0, True),
        ([((2, 0, 1, 0, 0), NONE)], 30.0, False),
        # One of two hundred is what chance does.
        ([((199, 0, 1, 0, 0), NONE)], 5.0, False),
        # Ended early: at once says nothing, after long it does.
        ([((2, 0, 0, 0, 0), (1, 0, 0, 0, 0))], 5.0, False),
        ([((2, 0, 0, 0, 0), (0, 0, 0, 1, 0))], 30.0, True),
        # Longer than the buckets go: no timeout is far above that.
        ([((2, 0, 0, 0, 1), NONE)], 3600.0, True),
    ],
)
def test_a_stratum_without_a_bound_speaks_against_a_timeout_that_its_requests_outrun(
    blocks: Sequence[tuple[Counts, Counts]], timeout_s: float, speaks: bool
) -> None:
    whole = bound_of(History(EDGES, (Block(5.0, (10, 1, 0, 0, 0)),) * 60), quantiles=(0.99,))
    assert isinstance(whole, Bound)
    assert whole.seconds == 1.0
    assert outruns(judgement(stratum("more", *blocks)), whole, timeout_s, MARGIN) == speaks


def test_a_stratum_with_a_bound_never_does() -> None:
    (one,) = judged([steady("more", (0, 0, 0, 10, 0))])
    whole = bounded(History(EDGES, (Block(5.0, (10, 0, 0, 0, 0)),) * 60))
    assert isinstance(one.bound, Bound)
    assert not outruns(one, whole, 1.0, MARGIN)


def test_a_burst_is_no_evidence_however_many_it_has() -> None:
    """Five hundred that came within five seconds are one look at how long such requests take."""
    burst = judgement(stratum("more", *[(NONE, NONE)] * 59, ((500, 0, 0, 0, 0), NONE)))
    assert isinstance(burst.bound, NoBound)
    assert "500 requests in 1 blocks" in burst.bound.why


def test_each_stratum_is_shown_with_what_it_has_and_what_it_lacks() -> None:
    rng = random.Random(3)
    drifting = [((10, 0, 0, 0, 0), NONE)] * 50 + [((5, 5, 0, 0, 0), NONE)] * 50
    few = stratum("first", *[((0, 0, 0, 0, 1), (0, 0, 1, 0, 0)), *[(NONE, NONE)] * 99])
    many = stratum("up_to_1MiB", *[((9, int(rng.random() < 0.5), 0, 0, 0), NONE) for _ in range(100)])
    strata = [few, many, stratum("up_to_16MiB", *drifting), steady("more", NONE, 100)]
    seen = judged(strata)
    rows = stratum_rows(seen)
    assert rows[0] == ["first on its connection", "2", "1", "over 100 s", "none", "297 requests"]
    assert rows[1][:5:4] == ["up to 1 MiB", "1 s (99.0%)"]
    assert rows[2][:4] == ["up to 16 MiB", "1000", "0", "up to 1 s"]
    assert len(rows) == 3
    said = list(stratum_lines(measured(strata), seen))
    assert said[0] == "no request was seen of these strata: more than 4 GiB"
    assert said[1].startswith("up to 16 MiB: no bound: requests stay longer in the second half of the window")
    whole = bounded(many.history)
    (line,) = unfounded_lines([seen[0]], 15.0, whole)
    assert line == (
        "15 s is not founded for the stratum 'first on its connection': of 2 requests 2 stayed longer than 1 s, the "
        "longest over 100 s; it takes 297 more of them to bound how long"
    )


def test_a_program_gets_the_same() -> None:
    strata = [steady("first", (0, 0, 5, 0, 0)), stratum("more", ((1, 0, 0, 0, 1), (0, 0, 1, 0, 0)))]
    whole = bounded(History(EDGES, (Block(5.0, (10, 0, 0, 0, 0)),) * 60))
    data: dict[str, Any] = json.loads(json.dumps(strata_as_data(measured(strata, whole_of(strata[:1])), whole)))
    first, more = data["strata"]
    assert (first["stratum"], first["requests"], first["longest_s"], first["why_no_bound"]) == (
        "first",
        300,
        10.0,
        None,
    )
    assert (more["ended_early"], more["longest_s"], more["bound"]) == (1, None, None)
    assert more["buckets"][-1] == {"up_to_s": None, "requests": 1, "ended_early": 0}
    assert data["rests_on"] == {"stratum": "first", "seconds": 10.0}


def tuned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], strata: Sequence[Stratum]
) -> tuple[int, dict[str, Any]]:
    """The exit code and the result of a run whose window has shown these strata."""

    class Looked:
        def measure(self, *_: object, **__: object) -> Measured:
            return measured(strata)

    monkeypatch.setattr(session, "open_window", lambda _: nullcontext(Looked()))
    target: Any = SimpleNamespace(name="cpu", records=[], fleet={})
    code = session.tune(Console("tune-timeout", Output.JSON), target, Interrupts(), session.Evidence(10.0))
    return code, json.loads(capsys.readouterr().out)["result"]


def test_a_recommendation_rests_on_the_largest_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strata = [steady("up_to_1MiB", (10_000, 0, 0, 0, 0)), steady("up_to_4GiB", (0, 0, 5, 0, 0))]
    code, result = tuned(monkeypatch, capsys, strata)
    assert code == 0
    assert result["rests_on"] == {"stratum": "up_to_4GiB", "seconds": 10.0}
    assert result["recommended"]["seconds"] == 30.0


def test_no_timeout_is_recommended_that_is_not_founded_for_a_stratum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = stratum("more", ((0, 0, 0, 4, 0), NONE), *[(NONE, NONE)] * 59)
    code, result = tuned(monkeypatch, capsys, [steady("up_to_1MiB", (600, 0, 0, 0, 0)), few])
    assert code == 5
    assert (result["recommended"], result["unfounded"]) == (None, ["more"])
    assert result["bound"]["seconds"] == 0.1
