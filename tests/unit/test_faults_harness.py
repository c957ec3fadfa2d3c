"""The pure parts of the fault harness: prompts that show foreign KV, plans from seeds, and what is judged a failure."""

import json
import random
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.reliability import Line, read_journal, table
from serving.cpu.tiny_model import expected_answer
from tests.stack.faults.checks import Said, failures, gauge_frozen_s, pinned_for_s, untrue
from tests.stack.faults.episodes import Evidence, limit_of, prompts_of
from tests.stack.faults.load import Fate, Outcome
from tests.stack.faults.observe import Load, Scrape, parse_metrics
from tests.stack.faults.plan import FAULTS, Episode, Fault, Timers, fault_of, plan_episode
from tests.stack.faults.prompts import DECOYS, NOISE, Prompt, make_prefix, make_prompt, probes
from tests.stack.faults.stack import Knobs

TIMERS = Timers()
IDLE = {"rooms": 0, "num_used_tokens": 0}


@pytest.mark.parametrize("length", [100, 300, 1000, 3000])
def test_an_answer_hangs_on_every_eighth_of_its_prompt(length: int) -> None:
    rng = random.Random(length)
    for shares in (False, True):
        prefix = make_prefix(rng, length // 2, 8) if shares and length >= 300 else None
        prompt = make_prompt(rng, length, 24, prefix)
        assert len(prompt.text) == length
        part = (length - 6) // 8
        for begin in range(0, 8 * part, part):
            foreign = "".join(rng.choices(NOISE, k=part))
            text = prompt.text[:begin] + foreign + prompt.text[begin + part :]
            # A hundred bytes hold eleven entries, and one of the twelve bytes of an eighth may be left alone.
            if length > 100:
                assert expected_answer(text.encode(), prompt.tokens).decode() != prompt.answer, begin


def test_the_answer_of_a_long_prompt_is_written_all_over_it() -> None:
    prompt = make_prompt(random.Random(3), 2000, 24)
    places = sorted(probes(prompt))
    assert len(places) == prompt.tokens == 24
    assert not set(prompt.answer) & set(DECOYS)
    assert max(b - a for a, b in pairwise(places)) < 2 * 2000 // 24


@pytest.mark.parametrize("length", [10, 11, 20, 45])
def test_the_shortest_prompts_have_an_answer_too(length: int) -> None:
    prefix = make_prefix(random.Random(1), 200, 8)
    prompt = make_prompt(random.Random(length), length, 24, prefix if length > 40 else None)
    assert len(prompt.text) >= length
    assert prompt.answer


def test_a_prompt_needs_ten_bytes() -> None:
    with pytest.raises(ValueError, match="at least 10"):
        make_prompt(random.Random(0), 9, 4)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_is_the_same_every_time_and_leaves_nothing_stopped(fault: Fault) -> None:
    for seed in range(1, 40):
        episode = plan_episode(seed, fault, TIMERS)
        assert episode == plan_episode(seed, fault, TIMERS)
        deeds = [action.deed for action in episode.actions]
        assert deeds.count("freeze decode") == deeds.count("thaw decode")
        assert deeds.count("kill decode") == deeds.count("start decode")
        assert deeds.count("kill prefill") == deeds.count("start prefill")
        if "step clock" in deeds:
            assert episode.actions[-1].amount == 0.0
        assert all(10 <= asked.length <= 8000 for asked in episode.asked)
        assert len({asked.rid for asked in episode.asked}) == len(episode.asked)


def test_the_faults_take_turns_and_prompts_are_never_the_same() -> None:
    seeds = range(1, 2 * len(FAULTS) + 1)
    assert [fault_of(seed) for seed in seeds] == [*FAULTS, *FAULTS]
    plans = [plan_episode(seed, fault_of(seed), TIMERS) for seed in (2, 3, 15)]
    texts = [prompt.text for plan in plans for prompt in prompts_of(plan).values() if len(prompt.text) > 60]
    assert len(texts) == len(set(texts))


def calm(*, holds: bool = False) -> Episode:
    episode = plan_episode(1, "held" if holds else "calm", TIMERS)
    return replace(episode, asked=episode.asked[:1])


def outcome(fate: Fate, text: str, *, took_s: float = 1.0, error: str = "", holds: bool = False) -> Outcome:
    return Outcome(calm(holds=holds).asked[0], Prompt("what:", "abcdef"), fate, 100.0, 100.0 + took_s, 200, text, error)


def load(at_s: float, inflight: int, *, ours: int | None = None, age_s: float = 0.0, held: int = 0) -> Load:
    count = inflight if ours is None else ours
    dsv4 = {"by_state": {"transferring": count}, "health_checks": 0, "oldest_age_s": age_s, "held": held}
    dsv4 |= {"oldest_rid_hash": "00000001"}
    return Load(at_s, inflight, dsv4)


def evidence(*outcomes: Outcome, episode: Episode | None = None) -> Evidence:
    return Evidence(
        episode=episode or calm(),
        outcomes=outcomes,
        done=(),
        loads=(load(100.0, 0), load(101.0, 0)),
        scrapes=(),
        held_before={"prefill": IDLE, "decode": IDLE},
        held_after={"prefill": IDLE, "decode": IDLE},
        settled_after_s=0.1,
        probes=(),
        limit_s=14.0,
        began_s=100.0,
        ended_s=110.0,
    )


def codes(seen: Evidence) -> list[str]:
    return [failure.code for failure in failures(seen, timeout_s=4.0)]


def test_a_right_answer_in_time_with_nothing_left_behind_is_no_failure() -> None:
    assert codes(evidence(outcome("answered", "abcdef"))) == []


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (evidence(outcome("answered", "abcdeX")), "WRONG_ANSWER"),
        (evidence(outcome("answered", "abc")), "WRONG_ANSWER"),
        (evidence(outcome("went away", "X")), "WRONG_ANSWER"),
        (evidence(outcome("no answer", "", took_s=15.0)), "NO_ANSWER"),
        (evidence(outcome("answered", "abcdef", took_s=14.5)), "LATE_ANSWER"),
        (evidence(outcome("refused", "abc", error="inflight timeout")), "NOT_SPARED"),
        (evidence(outcome("cut off", "abc")), "CUT_OFF"),
        (replace(evidence(), loads=(load(100.0, 1, age_s=6.5),)), "OVERSTAYED"),
        (replace(evidence(), held_after={"prefill": {**IDLE, "rooms": 1}, "decode": IDLE}), "NOT_IDLE"),
        (replace(evidence(), held_after={"prefill": None, "decode": IDLE}), "CANNOT_LOOK"),
        (replace(evidence(), probes=(outcome("refused", "", error="x"),)), "NOT_SERVING"),
        (replace(evidence(), loads=tuple(load(100 + n / 5, 2, ours=1) for n in range(10))), "STALE"),
        (replace(evidence(), loads=tuple(load(100 + n / 3, 1, age_s=2.0) for n in range(5))), "AGE_FROZEN"),
        (evidence(outcome("answered", "abcdef", holds=True), episode=calm(holds=True)), "NOT_HELD"),
        (evidence(outcome("refused", "", error="no reason", holds=True), episode=calm(holds=True)), "NOT_HELD"),
    ],
)
def test_what_is_wrong_has_its_code(seen: Evidence, code: str) -> None:
    assert code in codes(seen)


def test_a_held_canary_that_the_figures_showed_is_no_failure() -> None:
    ended = outcome("refused", "", error="inflight timeout: the KV of this request was ...", holds=True)
    seen = replace(evidence(ended, episode=calm(holds=True)), loads=(load(100.0, 1, held=1), load(100.1, 1, held=1)))
    assert codes(seen) == []
    assert codes(replace(seen, loads=(load(100.0, 1),))) == ["HELD_UNSEEN"]


def test_a_load_that_was_not_published_anew_says_nothing() -> None:
    busy = tuple(replace(load(100 + n / 5, 2, ours=1, age_s=1.0), fresh=False) for n in range(10))
    assert codes(replace(evidence(), loads=busy)) == []


def test_a_figure_between_two_counts_is_true_and_one_that_stays_behind_is_not() -> None:
    truth = [load(n / 5, 3 if n < 10 else 0) for n in range(30)]

    def stretches(*samples: tuple[float, float | None]) -> list[tuple[float, float, float]]:
        return list(untrue([Said(at_s, at_s, figure) for at_s, figure in samples], truth))

    assert stretches((1.9, 0.0), (2.1, 3.0), (2.2, 1.0)) == []
    assert stretches(*((n, 3.0) for n in (1.0, 2.0, 3.0, 4.0, 5.0))) == [(3.0, 5.0, 3.0)]
    assert stretches((3.0, 3.0), (4.0, None), (5.0, 3.0)) == [(3.0, 3.0, 3.0), (5.0, 5.0, 3.0)]
    # Between counts that are far apart anything may have been true.
    assert list(untrue([Said(2.5, 2.5, 1.0), Said(3.5, 3.5, 1.0)], truth[::4])) == []
    # A scrape that took two seconds may have read the figure when it was still true.
    assert list(untrue([Said(2.0, 4.0, 3.0)], truth)) == []


def test_how_long_a_pin_and_a_frozen_gauge_last() -> None:
    loads = tuple(load(100 + n, 1 if 2 <= n <= 7 else 0) for n in range(12))
    scrapes = tuple(Scrape(100.0 + n, 100.0 + n, {"sglang:num_prefill_inflight_queue_reqs": 0.0}) for n in range(12))
    assert pinned_for_s(loads) == 5.0
    assert gauge_frozen_s(replace(evidence(), loads=loads, scrapes=scrapes)) == 5.0


def test_metrics_are_summed_over_their_series() -> None:
    text = (
        'dsv4_inflight_requests{state="transferring",tp_rank="0"} 1.0\n'
        'dsv4_inflight_requests{state="waiting_for_input",tp_rank="0"} 2.0\n'
        "dsv4_inflight_health_checks 1.0\nother 5.0\n"
    )
    values = parse_metrics(text)
    assert values == {"dsv4_inflight_requests": 3.0, "dsv4_inflight_health_checks": 1.0}
    assert Scrape(0.0, 0.0, values).ours == 4.0
    assert Scrape(0.0, 0.0, {}).ours is None


def test_the_bound_of_a_client_is_the_longer_timer_three_seconds_and_the_work() -> None:
    episode = calm()
    longest = replace(episode, asked=(replace(episode.asked[0], length=5000),))
    assert limit_of(longest, Knobs(timers=Timers(4.0, 8.0)), tokens_per_s=2500.0) == pytest.approx(8.0 + 3.0 + 2.0)


def line(seed: int, *, without: str = "", failed: tuple[str, ...] = ()) -> Line:
    return Line(
        seed=seed,
        fault=fault_of(seed),
        profile="cpu",
        without=without,
        requests=4,
        fates={"answered": 3, "no answer": 1},
        wrong=0,
        slowest_s=5.0,
        limit_s=14.0,
        pinned_s=4.1,
        gauge_frozen_s=3.0,
        settled_s=0.1,
        took_s=9.0,
        failed=failed,
        evidence=(),
    )


def test_an_interrupted_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert read_journal(journal, Knobs()) == {}
    lines = [line(1), line(2, failed=("STALE",)), line(3, without="all")]
    journal.write_text("".join(json.dumps(asdict(one)) + "\n" for one in lines) + '{"seed": 4, "fau')
    assert read_journal(journal, Knobs()) == {1: lines[0], 2: lines[1]}
    assert read_journal(journal, Knobs(without="all")) == {3: lines[2]}
    assert read_journal(journal, Knobs(profile="cpu-mooncake")) == {}


def test_the_table_has_a_row_for_each_fault_that_was_tried_and_one_for_all() -> None:
    rows = table([line(1), line(2, failed=("STALE",)), line(15)]).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| calm", "| freeze-before", "| all"]
    assert rows[-1] == "| all | 3 | 2 | 12 | 9 | 0 | 0 | 0 | 3 | 5.0 s | 4.1 s |"


def test_every_fate_is_judged() -> None:
    assert set(get_args(Fate)) == {"answered", "refused", "cut off", "went away", "no answer"}
