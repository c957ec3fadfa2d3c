"""Which hop is at fault: the first one that fails, seen from the engine outwards, if what lies behind it does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dsv4ctl.probe.hops import Hop
from dsv4ctl.probe.outcome import HANGING, Outcome
from dsv4ctl.probe.tally import CHANCE, Count, HopTally, Manner, alike, chance_of_split

_MORE = "more --rounds or --concurrency"
_VERBS = {
    Outcome.HANGS: "hung",
    Outcome.ENDLESS: "did not come to an end",
    Outcome.CLOSED: "had their connection closed without an answer",
    Outcome.RESET: "had their connection reset",
    Outcome.CUT: "were cut off",
    Outcome.ENDED_EARLY: "ended early",
    Outcome.NO_CONNECTION: "were not accepted",
    Outcome.WRONG: "came back with a wrong answer",
    Outcome.EMPTY: "came back empty",
    Outcome.REPEATS: "came back repeating themselves",
}


class Kind(StrEnum):
    """What the verdict is."""

    SOUND = "every hop answers"
    FAULT = "a hop is at fault"
    INCONCLUSIVE = "inconclusive"
    UNSEEN = "could not look"


@dataclass(frozen=True)
class Verdict:
    """The answer, with one sentence that can be sent to somebody as it is.

    Attributes:
        hops: the hops at fault, all of one depth; those that it hangs on, when it is inconclusive.
        manner: how it fails.
        cleared: whether what lies behind it answers the same requests, so that the engine is not at fault.
        unsettled: what would have to be known, when it is inconclusive.
        maybe_slow: what hung may have been slow under the load of this probe alone.
    """

    kind: Kind
    hops: tuple[str, ...]
    manner: Manner | None
    cleared: bool
    sentence: str
    unsettled: str = ""
    maybe_slow: bool = False


def judge(hops: Sequence[Hop], tallies: Mapping[str, HopTally], workers: Mapping[str, str]) -> Verdict:
    """The verdict on a path: on those of its hops that were asked, which are those that `tallies` has.

    `workers` says, by hop, what is known besides about the workers of an engine.
    """
    asked = [hop for hop in hops if hop.name in tallies]
    depths = sorted({hop.depth for hop in asked}, reverse=True)
    unseen: list[str] = []
    once: list[HopTally] = []
    for depth in depths:
        here = [tallies[hop.name] for hop in asked if hop.depth == depth]
        inner = [tallies[hop.name] for hop in asked if hop.depth > depth]
        unseen += [each.hop for each in here if each.manner is Manner.UNSEEN]
        broken = [each for each in here if each.manner.broken]
        if broken:
            engine = any(hop.engine for hop in asked if hop.name == broken[0].hop)
            return _fault(broken, here, inner, workers, engine=engine)
        once += [each for each in here if each.manner is Manner.ONCE]
    if once:
        return _once(once)
    if unseen:
        text = f"{_listed(unseen)} could not be looked at; every other hop that was asked answers."
        if len(unseen) == len(asked):
            text = f"{_listed(unseen)} could not be looked at."
        return Verdict(Kind.UNSEEN, tuple(unseen), None, False, text)
    if partly := [tallies[hop.name] for hop in asked if tallies[hop.name].unseen]:
        counts = "; ".join(f"{each.unseen} of {each.unseen + each.all.asked} requests to {each.hop}" for each in partly)
        text = f"{counts} could not be made or followed to their end; every other request was answered rightly."
        return Verdict(Kind.UNSEEN, tuple(each.hop for each in partly), None, False, text)
    if not asked:
        return Verdict(
            Kind.INCONCLUSIVE, (), None, False, "Inconclusive: no request came to an end.", "the whole probe"
        )
    return Verdict(Kind.SOUND, (), None, True, _sound(list(tallies.values())))


def cut_short(verdict: Verdict) -> Verdict:
    """The verdict of a probe that was interrupted: what was seen to fail stands, "every hop answers" does not."""
    if verdict.kind is not Kind.SOUND:
        return verdict
    sentence = f"Inconclusive: the probe was interrupted. Until then: {verdict.sentence}"
    return replace(verdict, kind=Kind.INCONCLUSIVE, cleared=False, sentence=sentence, unsettled="the whole probe")


def _fault(
    broken: Sequence[HopTally],
    here: Sequence[HopTally],
    inner: Sequence[HopTally],
    workers: Mapping[str, str],
    *,
    engine: bool,
) -> Verdict:
    names = tuple(each.hop for each in broken)
    # What may only be slow excuses nothing else.
    surely = [each for each in broken if not _may_be_slow(each)]
    worst = next(iter(surely), broken[0])
    known = [workers[name] for name in names if name in workers]
    aside = "".join(f"; {each}" for each in dict.fromkeys(known))
    if not inner and not surely:
        alone = f"asked alone, before and after them, it answered {worst.large.asked} of {worst.large.asked} large ones"
        text = f"Inconclusive: {_how(worst)} while all conversations went on; {alone}: it may only be slow under load."
        unsettled = "a longer --hang-after, a smaller --grow, or less --concurrency"
        return Verdict(Kind.INCONCLUSIVE, names, worst.manner, False, text, unsettled, maybe_slow=True)
    if not inner:
        whose = "The engine is at fault" if engine else f"The fault is at {worst.hop} or behind it"
        beside = [each.hop for each in here if each.manner is Manner.ANSWERS]
        others = f"; {_listed(beside)} answered" if beside else ""
        text = f"{whose}: asked directly, {_how_all(broken)}{others}{aside}."
        return Verdict(Kind.FAULT, names, worst.manner, False, text)
    seen = [each for each in inner if each.manner is not Manner.UNSEEN]
    same = [alike(each, worst) for each in seen]
    behind = Count(sum(left.failed for left, _ in same), sum(left.asked for left, _ in same))
    failing = same[0][1] if same else worst.all
    if behind.failed or chance_of_split(failing, behind) > CHANCE:
        too_few = " too: it may be what failed" if behind.failed else ", which is too few to clear it"
        said = f"failed {behind} of the same requests{too_few}"
        unsettled = "the same again" if worst.manner in {Manner.LARGE, Manner.SMALL} else _MORE
        if not behind.asked:
            said = "was not asked the same" if seen else "could not be looked at"
            unsettled = _MORE if seen else "a look at what lies behind it"
        text = f"Inconclusive: {_how(worst)}, and what lies behind it ({_listed([each.hop for each in inner])}) {said}."
        return Verdict(Kind.INCONCLUSIVE, names, worst.manner, False, text, unsettled)
    within = f"{_listed([each.hop for each in seen])} answered {behind.asked - behind.failed} of {behind.asked}"
    text = f"The engine is not at fault: {within} of the same requests rightly, and {_how_all(broken)}{aside}."
    return Verdict(Kind.FAULT, names, worst.manner, True, text)


def _may_be_slow(tally: HopTally) -> bool:
    """Whether a hop hung only while this probe itself asked it for much at once."""
    alone = tally.large.asked > 1 and not tally.large.failed and not tally.small.failed
    return tally.manner is Manner.SOMETIMES and alone and {outcome for outcome, _ in tally.failures} <= HANGING


def _once(once: Sequence[HopTally]) -> Verdict:
    worst = once[0]
    text = f"Inconclusive: {_how(worst)}, seen once; asked again, it answered."
    if worst.all.asked == 1:
        text = f"Inconclusive: {_how(worst)}, and was not asked again."
    return Verdict(
        Kind.INCONCLUSIVE,
        tuple(each.hop for each in once),
        worst.manner,
        False,
        text,
        "more --rounds, or the same again",
    )


def _how_all(tallies: Sequence[HopTally]) -> str:
    return "; ".join(_how(each) for each in tallies)


def _how(tally: HopTally) -> str:
    """How one hop fails, with its figures, as a part of a sentence."""
    verb = verb_of(tally)
    through = f"requests to {tally.hop} {verb}"
    if tally.manner is Manner.REUSED:
        return f"{through} only on reused connections{_when(tally)}, never on fresh ones ({tally.fresh})"
    if tally.manner is Manner.ALWAYS:
        return f"{through} every time ({tally.all}{_mixed(tally)})"
    if tally.manner in {Manner.LARGE, Manner.SMALL}:
        large = tally.manner is Manner.LARGE
        one, other = ("large", "small") if large else ("small", "large")
        bad, good = (tally.large, tally.small) if large else (tally.small, tally.large)
        return f"{through} only when they were {one} ({bad}{_mixed(tally)}), never when {other} ({good})"
    both = f" ({tally.reused} on reused connections, {tally.fresh} on fresh ones)" if tally.reused.asked else ""
    return f"{through} {tally.all} times{both}"


def _when(tally: HopTally) -> str:
    gaps = tally.failing_gaps
    if gaps:
        counts = [f"{count} after {gap:g} s" for gap, count in tally.reused_by_gap]
        return f" that had lain idle ({', '.join(counts)})"
    nth = tally.first_failed_nth or 2
    return f" ({tally.reused} times, from request {nth} of a connection on)"


def verb_of(tally: HopTally) -> str:
    """What became of the requests that failed, in the words of a sentence."""
    if not tally.failures:
        return "were answered"
    if len({_verb(outcome) for outcome, _ in tally.failures}) > 1:
        return "failed"
    return _verb(tally.failures[0][0])


def _verb(outcome: Outcome) -> str:
    return _VERBS.get(outcome, "were answered with an error")


def _mixed(tally: HopTally) -> str:
    """How many failed in which way, where it was not always the same."""
    counts: dict[str, int] = {}
    for outcome, count in tally.failures:
        counts[_verb(outcome)] = counts.get(_verb(outcome), 0) + count
    return f": {', '.join(f'{count} {verb}' for verb, count in counts.items())}" if len(counts) > 1 else ""


def _sound(tallies: Sequence[HopTally]) -> str:
    asked = sum(each.all.asked for each in tallies)
    gaps = sorted({gap for each in tallies for gap, _ in (*each.kept_by_gap, *each.fresh_by_gap)})
    on = " on reused and fresh connections" if any(each.kept_by_gap for each in tallies) else ""
    after = f", after gaps of up to {gaps[-1]:g} s" if gaps and gaps[-1] > 0 else ""
    return f"Every hop answers: {asked} of {asked} requests were answered rightly{on}{after}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
