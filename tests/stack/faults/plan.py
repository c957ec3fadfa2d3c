"""What an episode does and when, as data: from a seed alone, and the same every time."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tests.stack.faults.prompts import MIN_LENGTH

Fault = Literal[
    "calm",
    "freeze-before",
    "freeze-during",
    "freeze-after",
    "freeze-long",
    "kill-decode",
    "restart-prefill",
    "abort-one",
    "abort-by-id",
    "abort-50",
    "held",
    "lose-links",
    "clock-step",
    "refill",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

Api = Literal["generate", "completions", "chat"]
APIS: tuple[Api, ...] = get_args(Api)

Moment = Literal["at once", "transfer", "decoding"]
"""What an action waits for first: nothing, bytes under way between the schedulers, or a request that decode has."""

Deed = Literal[
    "freeze decode",
    "thaw decode",
    "kill decode",
    "start decode",
    "kill prefill",
    "start prefill",
    "lose links",
    "step clock",
    "abort by id",
    "refill prefill",
]

LONGEST = 8000
ONE_CHUNK = 4000
REFILL_PROMPTS = 2
"""Of LONGEST tokens each: all of the KV pool."""

FLUSHED_S = 4.0
"""From when a prompt of ONE_CHUNK is sent to its transfer, and what a flush takes."""

ANSWER_TOKENS = 24
PREFIX_TOKENS = 8
SPARED_S = 1.0
"""Decode may stand still for so long without harm to any request."""

HOLD_RID = "dsv4-hold-"


@dataclass(frozen=True)
class Action:
    """Something done to the stack: `wait_s` after the action before it, and then at the moment `when`.

    `amount`: seconds of a clock step; which role is told to abort (0 prefill, 1 decode).
    """

    deed: Deed
    wait_s: float = 0.0
    when: Moment = "at once"
    amount: float = 0.0


@dataclass(frozen=True)
class Asked:
    """A request: when it is sent, how, and of what size.

    `closes_after_s`: the client goes away that long after it was sent, `closes_when`: at that moment. `shares`: it
    begins with the text that others of the episode begin with. `holds`: it is a canary whose transfer is held back.
    `by_halves`: prefill and decode are asked as the router asks them, and decode's answer is the answer, whatever
    prefill says: through the router an error of prefill's covers what decode would have said.
    """

    rid: str
    at_s: float
    api: Api
    stream: bool
    length: int
    closes_after_s: float | None = None
    closes_when: Moment = "at once"
    shares: bool = False
    holds: bool = False
    by_halves: bool = False


@dataclass(frozen=True)
class Episode:
    """One run against the stack.

    `prefix_length`: of the text that some requests share. `spares`: no request may fail, other than the ones that go
    away or are held.
    """

    seed: int
    fault: Fault
    asked: tuple[Asked, ...]
    actions: tuple[Action, ...]
    prefix_length: int
    spares: bool = False


@dataclass(frozen=True)
class Timers:
    """Of the engine, in seconds: the watchdog's, and that of a scheduler that stands still."""

    inflight_timeout_s: float = 4.0
    stall_timeout_s: float = 8.0


def _episode(
    rng: random.Random,
    seed: int,
    fault: Fault,
    asked: Sequence[Asked],
    actions: tuple[Action, ...] = (),
    *,
    spares: bool = False,
) -> Episode:
    return Episode(seed, fault, tuple(asked), actions, rng.randint(200, 2000), spares)


def _length(rng: random.Random, longest: int = LONGEST) -> int:
    """From 10 to `longest` tokens, each order of magnitude as often as the others."""
    return min(longest, int(MIN_LENGTH * (longest / MIN_LENGTH) ** rng.random()))


def _asked(rng: random.Random, seed: int, number: int, at_s: float, *, longest: int = LONGEST) -> Asked:
    # No rid begins with another: SGLang's abort is for all requests whose rid begins with the one that it names.
    return Asked(
        rid=f"faults-{seed}-{number:02}",
        at_s=round(at_s, 3),
        api=rng.choice(APIS),
        stream=rng.random() < 0.5,
        length=_length(rng, longest),
        shares=rng.random() < 0.4,
    )


def _load(rng: random.Random, seed: int, count: int, over_s: float) -> list[Asked]:
    """`count` requests spread over `over_s` seconds, the first so long and early that its transfer can be hit."""
    first, *others = [_asked(rng, seed, number, rng.uniform(0, over_s)) for number in range(count)]
    early = replace(first, at_s=round(rng.uniform(0, 0.3), 3), length=rng.randint(2500, 6000), shares=False)
    return [early, *others]


def _freeze(when: Moment, frozen_s: float) -> tuple[Action, ...]:
    return Action("freeze decode", 0.0, when), Action("thaw decode", round(frozen_s, 3))


def _frozen_s(rng: random.Random, timers: Timers) -> float:
    """As often too short for the watchdog as about as long as it waits, or longer."""
    about = rng.uniform(timers.inflight_timeout_s - 1, timers.inflight_timeout_s + 3)
    return rng.choice([rng.uniform(0.1, SPARED_S), about])


def _calm(rng: random.Random, seed: int, timers: Timers) -> Episode:
    return _episode(rng, seed, "calm", _load(rng, seed, 8, 2.0), spares=True)


def _frozen_before(rng: random.Random, seed: int, timers: Timers) -> Episode:
    frozen = _frozen_s(rng, timers)
    load = [*_load(rng, seed, rng.randint(4, 8), frozen + 1.5), _asked(rng, seed, 99, 0.0, longest=300)]
    return _episode(rng, seed, "freeze-before", load, _freeze("at once", frozen), spares=frozen <= SPARED_S)


def _frozen_during(rng: random.Random, seed: int, timers: Timers) -> Episode:
    frozen = _frozen_s(rng, timers)
    load = _load(rng, seed, rng.randint(4, 8), frozen + 1.5)
    return _episode(rng, seed, "freeze-during", load, _freeze("transfer", frozen), spares=frozen <= SPARED_S)


def _frozen_after(rng: random.Random, seed: int, timers: Timers) -> Episode:
    frozen = _frozen_s(rng, timers)
    load = _load(rng, seed, rng.randint(4, 8), frozen + 1.5)
    return _episode(rng, seed, "freeze-after", load, _freeze("decoding", frozen), spares=frozen <= SPARED_S)


def _frozen_long(rng: random.Random, seed: int, timers: Timers) -> Episode:
    frozen = max(timers.inflight_timeout_s, timers.stall_timeout_s) + rng.uniform(3, 5)
    return _episode(rng, seed, "freeze-long", _load(rng, seed, 5, 2.0), _freeze("transfer", frozen))


def _refilled(rng: random.Random, seed: int, timers: Timers) -> Episode:
    """The watchdog ends what decode cannot take, other prompts have prefill's pages, and only then decode goes on.

    Prefill is told to flush its cache first, which holds on to the pages of prompts that have ended: nobody would write
    into them for as long as there are others. It refuses while it has requests, so the others come later. Nobody else
    asks before decode is frozen, and the one prompt is prefilled in one chunk: its one transfer, which is also the
    last, is for the most part still in prefill's pages.
    """
    ended = timers.inflight_timeout_s + 1.0
    first, *others = _load(rng, seed, 4, 2.0)
    later = [replace(asked, at_s=round(asked.at_s + ended + FLUSHED_S, 3)) for asked in others]
    long = replace(first, length=rng.randint(ONE_CHUNK - 1000, ONE_CHUNK), api="generate", by_halves=True)
    freeze, thaw = _freeze("transfer", rng.uniform(0, 2))
    return _episode(rng, seed, "refill", [long, *later], (freeze, Action("refill prefill", ended), thaw))


def _restart(rng: random.Random, kill: Deed, start: Deed) -> tuple[Action, ...]:
    moments: tuple[Moment, ...] = get_args(Moment)
    killed = Action(kill, round(rng.uniform(0.0, 1.0), 3), rng.choice(moments))
    return killed, Action(start, round(rng.uniform(0.0, 1.5), 3))


def _decode_killed(rng: random.Random, seed: int, timers: Timers) -> Episode:
    return _episode(rng, seed, "kill-decode", _load(rng, seed, 6, 1.5), _restart(rng, "kill decode", "start decode"))


def _prefill_killed(rng: random.Random, seed: int, timers: Timers) -> Episode:
    actions = _restart(rng, "kill prefill", "start prefill")
    return _episode(rng, seed, "restart-prefill", _load(rng, seed, 6, 1.5), actions)


def _aborted_one(rng: random.Random, seed: int, timers: Timers) -> Episode:
    first, *others = _load(rng, seed, 6, 2.0)
    gone = replace(first, closes_after_s=0.0, closes_when="transfer")
    return _episode(rng, seed, "abort-one", [gone, *others], spares=True)


def _aborted_by_id(rng: random.Random, seed: int, timers: Timers) -> Episode:
    first, *others = _load(rng, seed, 5, 2.0)
    told = Action("abort by id", 0.0, "transfer", float(rng.randint(0, 1)))
    return _episode(rng, seed, "abort-by-id", [replace(first, api="generate"), *others], (told,))


def _aborted_50(rng: random.Random, seed: int, timers: Timers) -> Episode:
    """Fifty clients that go away at once, whatever has become of their requests, and four that stay."""
    gone_at_s = rng.uniform(0.5, 3.0)
    storm = [_asked(rng, seed, number, rng.uniform(0, gone_at_s), longest=3000) for number in range(50)]
    gone = [replace(asked, closes_after_s=round(gone_at_s - asked.at_s, 3)) for asked in storm]
    stay = [_asked(rng, seed, 50 + number, rng.uniform(0, gone_at_s + 1), longest=2000) for number in range(4)]
    return _episode(rng, seed, "abort-50", [*gone, *stay], spares=True)


def _held_back(rng: random.Random, seed: int, timers: Timers) -> Episode:
    held = [_canary(rng, seed, number) for number in range(rng.randint(1, 3))]
    return _episode(rng, seed, "held", [*held, *_load(rng, seed, 4, timers.inflight_timeout_s)], spares=True)


def _canary(rng: random.Random, seed: int, number: int) -> Asked:
    """A canary whose lease ends before the watchdog would act, or long after."""
    rid = f"{HOLD_RID}{rng.choice([2, 30])}-{seed}-{number}"
    return Asked(rid, round(rng.uniform(0, 1), 3), "generate", False, _length(rng, 2000), holds=True)


def _links_lost(rng: random.Random, seed: int, timers: Timers) -> Episode:
    moments: tuple[Moment, ...] = ("transfer", "at once")
    lose = Action("lose links", round(rng.uniform(0.0, 0.5), 3), rng.choice(moments))
    return _episode(rng, seed, "lose-links", _load(rng, seed, 6, 2.5), (lose,))


def _clock_stepped(rng: random.Random, seed: int, timers: Timers) -> Episode:
    """The clock goes minutes or hours on or back while requests are inflight, and right again; decode stops or not."""
    there = Action("step clock", round(rng.uniform(0.0, 0.5), 3), amount=rng.choice([-7200.0, -30.0, 30.0, 7200.0]))
    back = Action("step clock", round(rng.uniform(0.5, 2.0), 3))
    if rng.random() < 0.5:
        load = _load(rng, seed, 5, 2.0)
        return _episode(rng, seed, "clock-step", load, (replace(there, when="transfer"), back), spares=True)
    frozen = timers.inflight_timeout_s + 1.5
    freeze, thaw = _freeze("transfer", frozen)
    return _episode(rng, seed, "clock-step", _load(rng, seed, 5, 2.0 + frozen), (freeze, there, thaw, back))


_PLANS: Mapping[Fault, Callable[[random.Random, int, Timers], Episode]] = {
    "calm": _calm,
    "freeze-before": _frozen_before,
    "freeze-during": _frozen_during,
    "freeze-after": _frozen_after,
    "freeze-long": _frozen_long,
    "kill-decode": _decode_killed,
    "restart-prefill": _prefill_killed,
    "abort-one": _aborted_one,
    "abort-by-id": _aborted_by_id,
    "abort-50": _aborted_50,
    "held": _held_back,
    "lose-links": _links_lost,
    "clock-step": _clock_stepped,
    "refill": _refilled,
}


def plan_episode(seed: int, fault: Fault, timers: Timers) -> Episode:
    """The episode of a seed: the same every time."""
    return _PLANS[fault](random.Random(f"{seed} {fault}"), seed, timers)


def fault_of(seed: int) -> Fault:
    """Which fault a seed is for in a run over many: they take turns."""
    return FAULTS[(seed - 1) % len(FAULTS)]
