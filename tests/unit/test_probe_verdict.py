"""From requests to a verdict: what is counted, what is called chance, and which hop is named."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.findings import Severity
from dsv4ctl.probe.hops import Hop, Place, covering, stack_hops, via_hops
from dsv4ctl.probe.outcome import Act, Exchange, Outcome, Peer, Reply, Times
from dsv4ctl.probe.report import findings_of
from dsv4ctl.probe.tally import CHANCE, Count, Manner, chance_of_split, tally
from dsv4ctl.probe.verdict import Kind, Verdict, judge

PROXY, ROUTER, PAIR = "http://proxy:1", "router", "prefill-0+decode-0"
HOPS = (
    Hop(0, Place(PROXY, PROXY, "local")),
    Hop(1, Place("router", "http://127.0.0.1:1", "box")),
    Hop(2, Place("decode-0", "http://127.0.0.1:2", "box"), Place("prefill-0", "http://127.0.0.1:3", "box", 8998), True),
)


def asked(
    hop: str,
    outcome: Outcome = Outcome.RIGHT,
    *,
    nth: int = 1,
    gap_s: float = 0.0,
    kept: bool = False,
    again: bool = False,
) -> Exchange:
    act = Act.SILENT if outcome is Outcome.HANGS else Act.ANSWERED
    reply = Reply(outcome, "sent nothing for 5 s", Times(), Peer(act), nth=nth)
    return Exchange(hop, "rounds", 1, kept or nth > 1, 2 if kept or nth > 1 else 1, gap_s, again, 80, reply)


def verdict_of(exchanges: Sequence[Exchange], hops: Sequence[Hop] = HOPS) -> Verdict:
    return judge(hops, {hop.name: tally(hop.name, exchanges) for hop in hops}, {})


def fine(*hops: str, times: int = 4) -> list[Exchange]:
    """Requests that were answered, on fresh and on reused connections."""
    return [asked(hop, nth=nth) for hop in hops for nth in (1, 2) for _ in range(times)]


@given(*[st.integers(0, 8) for _ in range(4)])
def test_the_chance_of_a_split_is_what_counting_all_of_them_gives(a: int, b: int, c: int, d: int) -> None:
    left, right = Count(min(a, b), b), Count(min(c, d), d)
    failed, total = left.failed + right.failed, left.asked + right.asked
    places = [set(chosen) for chosen in itertools.combinations(range(total), failed)] if total <= 10 else None
    if places is None:
        ways = sum(
            comb(left.asked, on_left) * comb(right.asked, failed - on_left)
            for on_left in range(left.failed, min(failed, left.asked) + 1)
        )
        assert chance_of_split(left, right) == pytest.approx(float(Fraction(ways, comb(total, failed))))
    else:
        alike = sum(len([at for at in chosen if at < left.asked]) >= left.failed for chosen in places)
        assert chance_of_split(left, right) == pytest.approx(alike / len(places))


def test_a_path_that_answers_is_sound() -> None:
    found = verdict_of(fine(PROXY, ROUTER, PAIR))
    assert found.kind is Kind.SOUND
    assert found.sentence.startswith("Every hop answers: 24 of 24")


def test_a_proxy_that_hangs_on_reused_connections_is_named_and_the_engine_is_cleared() -> None:
    exchanges = [*fine(ROUTER, PAIR), *(asked(PROXY, Outcome.HANGS, nth=2) for _ in range(3)), *fine(PROXY)[:4]]
    exchanges += [asked(PROXY) for _ in range(4)]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops, found.manner, found.cleared) == (Kind.FAULT, (PROXY,), Manner.REUSED, True)
    assert found.sentence.startswith("The engine is not at fault: router and prefill-0+decode-0 answered")
    assert "hung only on reused connections (3 of 3 times, from request 2" in found.sentence
    (finding,) = findings_of([tally(hop.name, exchanges) for hop in HOPS], exchanges, found)
    assert finding.code == "HOP_BREAKS_KEEPALIVE"
    assert finding.evidence["reused_failed"] == 3


def test_a_gap_after_which_it_hangs_is_named() -> None:
    exchanges = fine(ROUTER, PAIR)
    for hop in (ROUTER, PAIR):
        exchanges += [asked(hop, nth=2, gap_s=60.0) for _ in range(4)]
    exchanges += [asked(PROXY, nth=nth, gap_s=gap) for nth, gap in ((2, 0.0), (3, 4.0), (4, 6.0))]
    exchanges += [asked(PROXY, Outcome.HANGS, nth=2, gap_s=60.0) for _ in range(3)]
    exchanges += [asked(PROXY) for _ in range(10)]
    found = verdict_of(exchanges)
    assert found.manner is Manner.REUSED
    assert (
        "that had lain idle (0 of 1 after 0 s, 0 of 1 after 4 s, 0 of 1 after 6 s, 3 of 3 after 60 s)" in found.sentence
    )


def test_the_innermost_hop_that_fails_is_named_not_those_that_suffer() -> None:
    exchanges = [*fine(PAIR), *(asked(hop, Outcome.STATUS) for hop in (PROXY, ROUTER) for _ in range(4))]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops, found.cleared) == (Kind.FAULT, (ROUTER,), True)
    exchanges = [asked(hop, Outcome.HANGS) for hop in (PROXY, ROUTER, PAIR) for _ in range(4)]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops, found.cleared) == (Kind.FAULT, (PAIR,), False)
    assert found.sentence.startswith(
        "The engine is at fault: asked directly, requests to prefill-0+decode-0 hung every"
    )


def test_what_is_known_of_the_workers_is_said() -> None:
    exchanges = [asked(PAIR, Outcome.HANGS) for _ in range(4)]
    said = "decode-0 does not answer /health_generate within 5 s, prefill-0 answers it"
    found = judge(HOPS, {PAIR: tally(PAIR, exchanges)}, {PAIR: said})
    assert said in found.sentence


def test_one_silence_that_does_not_come_again_is_no_verdict() -> None:
    exchanges = [*fine(PROXY, ROUTER, PAIR), asked(PROXY, Outcome.HANGS, nth=2), asked(PROXY, again=True)]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops) == (Kind.INCONCLUSIVE, (PROXY,))
    assert "1 of 10 times" in found.sentence
    codes = [finding.code for finding in findings_of([tally(PROXY, exchanges)], exchanges, found)]
    assert codes == ["PROBE_INCONCLUSIVE"]


def test_one_wrong_answer_is_one_too_many() -> None:
    exchanges = [*fine(ROUTER, PAIR, times=30), *fine(PROXY), asked(PROXY, Outcome.WRONG)]
    found = verdict_of(exchanges)
    codes = {finding.code for finding in findings_of([tally(PROXY, exchanges)], exchanges, found)}
    assert "PROBE_WRONG_ANSWER" in codes


def test_a_hop_is_not_cleared_by_too_few_requests() -> None:
    exchanges = [asked(ROUTER), asked(PAIR), *(asked(PROXY, Outcome.HANGS) for _ in range(2)), *(asked(PROXY),) * 4]
    found = verdict_of(exchanges)
    assert found.kind is Kind.INCONCLUSIVE
    assert "too few to clear it" in found.sentence


def test_a_hop_that_could_not_be_looked_at_is_not_healthy() -> None:
    found = verdict_of([asked(PROXY, Outcome.UNSEEN), *fine(ROUTER, PAIR)])
    assert (found.kind, found.hops) == (Kind.UNSEEN, (PROXY,))
    assert verdict_of([asked(hop.name, Outcome.UNSEEN) for hop in HOPS]).kind is Kind.UNSEEN


def test_requests_that_could_not_be_made_are_no_sound_hop() -> None:
    exchanges = [*fine(PROXY, ROUTER, PAIR), *(asked(PROXY, Outcome.UNSEEN) for _ in range(5))]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops) == (Kind.UNSEEN, (PROXY,))
    assert "5 of 13 requests to" in found.sentence


def test_a_pair_that_is_dead_is_not_excused_by_one_that_may_be_slow() -> None:
    other = Hop(2, Place("decode-1", "http://127.0.0.1:4", "box"), HOPS[2].prefill, True)
    slow = [single(PAIR, 1), single(PAIR, 2), single(PAIR, 2)]
    slow += [asked(PAIR, Outcome.HANGS if number < 3 else Outcome.RIGHT) for number in range(10)]
    dead = [single(other.name, number, Outcome.HANGS) for number in (1, 1, 2, 2)]
    found = verdict_of([*slow, *dead], (HOPS[2], other))
    assert found.kind is Kind.FAULT
    assert "decode-1 hung every time (4 of 4)" in found.sentence


def test_of_two_pairs_the_one_that_fails_is_named() -> None:
    other = Hop(2, Place("decode-1", "http://127.0.0.1:4", "box"), HOPS[2].prefill)
    hops = (*HOPS, other)
    exchanges = [*fine(PAIR), *(asked(other.name, Outcome.HANGS) for _ in range(4))]
    found = verdict_of(exchanges, hops)
    assert found.hops == ("prefill-0+decode-1",)
    assert "prefill-0+decode-0 answered" in found.sentence


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_failures_that_have_nothing_to_do_with_reuse_are_seldom_blamed_on_it(rate: float) -> None:
    """Over 1,000 probes whose hop fails at random, on whatever connection, at most as many as chance is allowed."""
    rng = random.Random(f"rate {rate}")
    blamed = 0
    for _ in range(1000):
        exchanges = [
            asked("hop", Outcome.HANGS if rng.random() < rate else Outcome.RIGHT, nth=nth, gap_s=gap)
            for nth in (1, 2)
            for gap in (0.0, 4.0, 6.0, 60.0)
            for _ in range(3)
        ]
        blamed += tally("hop", exchanges).manner is Manner.REUSED
    assert blamed <= 1000 * CHANCE


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.sampled_from([0.0, 6.0])), max_size=40))
def test_counts_add_up(drawn: list[tuple[bool, int, float]]) -> None:
    exchanges = [
        asked("hop", Outcome.HANGS if failed else Outcome.RIGHT, nth=nth, gap_s=gap) for failed, nth, gap in drawn
    ]
    found = tally("hop", exchanges)
    assert found.all == Count(sum(failed for failed, _, _ in drawn), len(drawn))
    assert sum(count.asked for _, count in found.reused_by_gap) == found.reused.asked
    assert found.manner.sound == (not any(failed for failed, _, _ in drawn) and bool(drawn))


def test_hops_that_a_person_names() -> None:
    first, second, pair = via_hops(["http://a:1/v1/", "https://b/x", "http://p:3#9000+http://d:4"])
    assert (first.server.url, second.server.url) == ("http://a:1", "https://b/x")
    assert (pair.name, pair.prefill and pair.prefill.bootstrap_port) == ("http://p:3+http://d:4", 9000)
    assert [hop.depth for hop in (first, second, pair)] == [0, 1, 2]
    assert stack_hops((), 0) == ()


def test_pairs_for_conversations_touch_every_worker_and_are_few() -> None:
    prefills = [Place(f"prefill-{i}", f"http://p{i}", "box") for i in range(3)]
    decodes = [Place(f"decode-{i}", f"http://d{i}", "box") for i in range(2)]
    hops = [HOPS[0], *(Hop(1, decode, prefill) for prefill in prefills for decode in decodes)]
    chosen = covering(hops)
    assert chosen[0] is HOPS[0]
    assert {place for hop in chosen[1:] for place in hop.places} == {*prefills, *decodes}
    assert len(chosen) == 4


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4])
def test_an_engine_that_fails_at_random_is_seldom_cleared(rate: float) -> None:
    """Over 1,000 probes of a path whose engine fails at random, so that all hops seem to."""
    rng = random.Random(f"engine {rate}")
    cleared = 0
    for _ in range(1000):
        exchanges = [
            asked(hop.name, Outcome.HANGS if rng.random() < rate else Outcome.RIGHT, nth=nth, gap_s=gap)
            for hop in HOPS
            for nth in (1, 2)
            for gap in (0.0, 6.0)
            for _ in range(3)
        ]
        found = verdict_of(exchanges)
        cleared += found.kind is Kind.FAULT and found.cleared
    assert cleared <= 1000 * CHANCE


@pytest.mark.parametrize(("gap_s", "rounds"), [(0.0, 3), (6.0, 3)])
def test_a_proxy_that_always_breaks_kept_connections_is_never_missed(gap_s: float, rounds: int) -> None:
    """What `conduct` comes to before it stops: three failures, each answered when it is asked again."""
    exchanges = [*fine(ROUTER, PAIR), *(asked(PROXY),) * 4]
    for hop in (ROUTER, PAIR):
        exchanges += [asked(hop, nth=2, gap_s=gap_s) for _ in range(5)]
    for _ in range(rounds):
        exchanges += [asked(PROXY, Outcome.HANGS, nth=2, gap_s=gap_s), asked(PROXY, again=True)]
    exchanges += [asked(PROXY, gap_s=gap) for gap in (0.0, 4.0, 6.0)]
    found = verdict_of(exchanges)
    assert (found.kind, found.hops, found.cleared) == (Kind.FAULT, (PROXY,), True)


def single(hop: str, number: int, outcome: Outcome = Outcome.RIGHT) -> Exchange:
    return replace(asked(hop, outcome), phase="walk", round=number)


@pytest.mark.parametrize(("number", "manner"), [(2, Manner.LARGE), (1, Manner.SMALL)])
def test_a_hop_that_fails_on_one_size_is_named_and_what_lies_behind_it_cleared(number: int, manner: Manner) -> None:
    other = 3 - number
    failing = [single(PROXY, number, Outcome.STATUS)] * 3 + [single(PROXY, other)]
    behind = [single(hop, size) for hop in ("router", PAIR) for size in (1, 2) for _ in range(3)]
    verdict = verdict_of([*failing, *behind])
    assert (verdict.kind, verdict.hops, verdict.manner, verdict.cleared) == (Kind.FAULT, (PROXY,), manner, True)
    assert "(3 of 3), never when" in verdict.sentence


def test_a_sentence_counts_each_way_in_which_requests_failed() -> None:
    mixed = [single(PROXY, 1, Outcome.STATUS), *[single(PROXY, size, Outcome.HANGS) for size in (1, 2, 2)]]
    verdict = verdict_of(
        [*mixed, *[single(hop, size) for hop in ("router", PAIR) for size in (1, 2) for _ in range(2)]]
    )
    assert "failed every time (4 of 4: 1 were answered with an error, 3 hung)" in verdict.sentence
    (finding,) = findings_of([tally(PROXY, mixed)], mixed, verdict)
    assert finding.code == "PROBE_HANGS"
    assert "1 times HTTP error, 3 times hangs" in finding.message


def test_an_engine_that_hung_only_under_the_load_of_the_probe_may_be_slow() -> None:
    alone = [single(PAIR, 1), single(PAIR, 2), single(PAIR, 2)]
    busy = [asked(PAIR, Outcome.HANGS if number < 4 else Outcome.RIGHT) for number in range(14)]
    exchanges = [*alone, *busy]
    verdict = verdict_of(exchanges, HOPS[2:])
    assert (verdict.kind, verdict.maybe_slow) == (Kind.INCONCLUSIVE, True)
    (finding, _) = findings_of([tally(PAIR, exchanges)], exchanges, verdict)
    assert finding.severity is Severity.WARNING
    # Alone it hangs as well: then it is at fault.
    again = [*exchanges, single(PAIR, 2, Outcome.HANGS)]
    assert verdict_of(again, HOPS[2:]).kind is Kind.FAULT
