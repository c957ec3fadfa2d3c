"""Carrying an episode out against a running stack, and what was seen."""

import asyncio
import contextlib
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from tests.stack.faults.links import links_between, lose, moved_bytes
from tests.stack.faults.load import Half, Outcome, request
from tests.stack.faults.observe import Load, Scrape, Watch, holdings
from tests.stack.faults.plan import (
    ANSWER_TOKENS,
    LONGEST,
    PREFIX_TOKENS,
    REFILL_PROMPTS,
    Action,
    Asked,
    Episode,
    Moment,
)
from tests.stack.faults.prompts import Prompt, make_prefix, make_prompt
from tests.stack.faults.stack import FaultStack, Knobs, Role

MOMENT_WITHIN_S = 8.0
"""A moment that has not come by then does not come: the action is done all the same."""

UNDER_WAY_BYTES = 20_000
"""So many bytes between the schedulers are a transfer; handshakes and polls are hundreds."""

NOBODY = "2.2.2.2"
"""What SGLang takes for a decode that is not there: it prefills, and sends nothing."""

REFILL_WITHIN_S = 12.0
HALF_PATIENCE_S = 20.0
"""Who asks decode itself waits for what it says when it goes on, however late that is."""

SETTLE_WITHIN_S = 20.0
PROBES = 3
PROBE_WITHIN_S = 20.0
SEEN_AGAIN_WITHIN_S = 10.0
ROUTER_CHECKS_LAST_S = 6.0
"""A check that the router began while a worker stood still fails only when its own time is over, and then counts."""

ROLES_THAT_HOLD: tuple[Role, ...] = ("prefill", "decode")


@dataclass(frozen=True)
class Done:
    """An action, carried out: when, and whether its moment had come."""

    action: Action
    at_s: float
    hit: bool


@dataclass(frozen=True)
class Evidence:
    """What was seen of an episode. Times are seconds of the monotonic clock; `held_after` is None when no answer came.

    `limit_s`: how long a client may wait for its answer, after it asked or after the first fault, what came later.
    """

    episode: Episode
    outcomes: tuple[Outcome, ...]
    done: tuple[Done, ...]
    loads: tuple[Load, ...]
    scrapes: tuple[Scrape, ...]
    held_before: Mapping[Role, Mapping[str, int]]
    held_after: Mapping[Role, Mapping[str, int] | None]
    settled_after_s: float
    probes: tuple[Outcome, ...]
    limit_s: float
    began_s: float
    ended_s: float


def prompts_of(episode: Episode) -> dict[str, Prompt]:
    """The prompt of each request of an episode, by its rid; the same every time."""
    rng = random.Random(f"prompts {episode.seed}")
    prefix = make_prefix(rng, episode.prefix_length, PREFIX_TOKENS)
    return {
        asked.rid: make_prompt(rng, asked.length, ANSWER_TOKENS, prefix if asked.shares else None)
        for asked in episode.asked
    }


def limit_of(episode: Episode, knobs: Knobs, tokens_per_s: float) -> float:
    """How long a client may wait: the longer of the two timers, 3 s, and the work that all of the episode is.

    docs/timeouts.md says case by case which timer it is.
    """
    refills = sum(action.deed == "refill prefill" for action in episode.actions)
    work_s = (sum(asked.length for asked in episode.asked) + refills * REFILL_PROMPTS * LONGEST) / tokens_per_s
    return max(knobs.timers.inflight_timeout_s, knobs.timers.stall_timeout_s) + 3.0 + work_s


@dataclass
class Run:
    """One episode while it runs."""

    stack: FaultStack
    episode: Episode
    limit_s: float
    client: httpx.AsyncClient
    done: list[Done] = field(default_factory=list)
    fault_s: float = 0.0
    _schedulers: dict[Role, int] = field(default_factory=dict)

    async def moment(self, when: Moment) -> None:
        """Return when the moment has come, or after MOMENT_WITHIN_S."""
        await self._has_come(when)

    async def _has_come(self, when: Moment) -> bool:
        deadline = time.monotonic() + MOMENT_WITHIN_S
        if when == "at once":
            return True
        if when == "decoding":
            while time.monotonic() < deadline:
                held = await self._decode_running()
                if held:
                    return True
                await asyncio.sleep(0.02)
            return False
        return await asyncio.to_thread(self._transfer_begins, deadline)

    async def _decode_running(self) -> bool:
        try:
            told = await self.client.get(self.stack.workers["decode"].url + "/v1/loads?include=core", timeout=2)
        except httpx.HTTPError:
            return False
        return told.status_code == httpx.codes.OK and any(load["num_running_reqs"] for load in told.json()["loads"])

    def _transfer_begins(self, deadline: float) -> bool:
        """Whether bytes begin to move between the schedulers before `deadline`."""
        while time.monotonic() < deadline:
            # Connections come and go with the peers; a sum over others than before says nothing.
            with contextlib.suppress(OSError, KeyError):
                links = links_between(self._schedulers["prefill"], self._schedulers["decode"])
                before = moved_bytes(links)
                for _ in range(50):
                    time.sleep(0.002)
                    now = moved_bytes(links)
                    if now - before >= UNDER_WAY_BYTES:
                        return True
                    before = now
        return False

    def look_up_schedulers(self) -> None:
        """Which processes they are now: looked up ahead, because what is done to one has its moment in milliseconds."""
        for role in ROLES_THAT_HOLD:
            with contextlib.suppress(LookupError, KeyError):
                self._schedulers[role] = self.stack.scheduler(role)

    async def act(self) -> None:
        """Carry the actions out, one after the other."""
        for action in self.episode.actions:
            await asyncio.sleep(action.wait_s)
            strike = self._strike_of(action)
            if strike is not None and action.when == "transfer":
                # In the thread that sees the bytes: a transfer is over in tens of milliseconds.
                done = await asyncio.to_thread(self._strike_in_transfer, action, strike)
            else:
                hit = await self._has_come(action.when)
                done = Done(action, time.monotonic(), hit)
                if strike is not None:
                    await asyncio.to_thread(strike)
                else:
                    await self._do(action)
            self.fault_s = self.fault_s or done.at_s
            self.done.append(done)

    def _strike_in_transfer(self, action: Action, strike: Callable[[], None]) -> Done:
        hit = self._transfer_begins(time.monotonic() + MOMENT_WITHIN_S)
        done = Done(action, time.monotonic(), hit)
        strike()
        return done

    def _strike_of(self, action: Action) -> Callable[[], None] | None:
        """What is done in one blow, without a question to an engine; None for what is not."""
        stack = self.stack
        match action.deed:
            case "freeze decode":
                return lambda: os.kill(self._schedulers["decode"], signal.SIGSTOP)
            case "thaw decode":
                return lambda: os.kill(self._schedulers["decode"], signal.SIGCONT)
            case "kill decode":
                return lambda: stack.kill("decode")
            case "kill prefill":
                return lambda: stack.kill("prefill")
            case "lose links":
                return self._lose_links
            case "step clock":
                return lambda: stack.step_wall_clock(action.amount)
        return None

    async def _do(self, action: Action) -> None:
        if action.deed == "refill prefill":
            await self._refill_prefill()
            return
        if action.deed == "abort by id":
            role: Role = "decode" if action.amount else "prefill"
            with contextlib.suppress(httpx.HTTPError):
                url = self.stack.workers[role].url
                await self.client.post(f"{url}/abort_request", json={"rid": self.episode.asked[0].rid}, timeout=5)
            return
        restarted: Role = "decode" if action.deed == "start decode" else "prefill"
        self.stack.start(restarted)
        await asyncio.to_thread(self.stack.wait_ready, restarted)
        self.look_up_schedulers()

    async def _refill_prefill(self) -> None:
        """Prompts that are prefilled and sent nowhere take every page that prefill has to give."""
        rng = random.Random(f"refill {self.episode.seed}")
        url = self.stack.workers["prefill"].url
        # One that keeps pages refuses, and shall.
        with contextlib.suppress(httpx.HTTPError):
            await self.client.post(f"{url}/flush_cache", timeout=REFILL_WITHIN_S)

        async def prefill(number: int) -> None:
            body = {
                "rid": f"refill-{self.episode.seed}-{number}",
                "text": make_prompt(rng, LONGEST, ANSWER_TOKENS).text,
                "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                "bootstrap_host": NOBODY,
                "bootstrap_room": rng.getrandbits(62),
            }
            # Where pages are kept for a transfer that is not over, the last of them waits until it is.
            with contextlib.suppress(httpx.HTTPError):
                await self.client.post(f"{url}/generate", json=body, timeout=REFILL_WITHIN_S)

        await asyncio.gather(*(prefill(number) for number in range(REFILL_PROMPTS)))

    def _lose_links(self) -> None:
        for link in links_between(self._schedulers["prefill"], self._schedulers["decode"]):
            # One that was closed since needs no help.
            with contextlib.suppress(OSError):
                lose(link)

    def _half(self) -> Half:
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.stack.bootstrap_port}
        return Half(self.stack.workers["prefill"].url, {**room, "bootstrap_room": secrets.randbits(62)})

    async def ask(self, asked: Asked, prompt: Prompt, began_s: float) -> Outcome:
        """One request, at its time; it gives up when its bound and a little more is over."""
        await asyncio.sleep(max(0.0, began_s + asked.at_s - time.monotonic()))
        give_up = asyncio.Event()
        sent = time.monotonic()
        half = self._half() if asked.by_halves else None
        url = self.stack.url if half is None else self.stack.workers["decode"].url
        asking = asyncio.create_task(
            request(self.client, url, asked, prompt, give_up=give_up, moment=self.moment, half=half)
        )
        while not asking.done():
            await asyncio.wait([asking], timeout=0.25)
            patience_s = HALF_PATIENCE_S if asked.by_halves else 1.0
            if time.monotonic() > max(sent, self.fault_s) + self.limit_s + patience_s:
                give_up.set()
        return await asking


async def run_episode(stack: FaultStack, episode: Episode) -> Evidence:
    """Carry an episode out and watch. The stack is left running, thawed, with its clock right.

    Raises:
        RuntimeError: a worker that was restarted did not come up.
    """
    limit = limit_of(episode, stack.knobs, stack.tokens_per_s)
    prompts = prompts_of(episode)
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=None, limits=unlimited) as client:
        run = Run(stack, episode, limit, client)
        run.look_up_schedulers()
        _, before = await _settle(client, stack, stack.idle)
        for role, held in before.items():
            # The first episode finds the stack as it was started: that is what idle means from then on.
            if held is not None:
                stack.idle.setdefault(role, held)
        watch = Watch(stack)
        watching = asyncio.create_task(watch.watch(client))
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.act())
                asking = [group.create_task(run.ask(asked, prompts[asked.rid], began)) for asked in episode.asked]
            outcomes = tuple(task.result() for task in asking)
            settled_s, after = await _settle(client, stack, stack.idle)
            thawed_s = max((done.at_s for done in run.done if done.action.deed == "thaw decode"), default=began)
            await asyncio.sleep(max(0.0, thawed_s + ROUTER_CHECKS_LAST_S - time.monotonic()))
            probes = await _probe(client, stack, episode)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            _undo(stack)
    return Evidence(
        episode=episode,
        outcomes=outcomes,
        done=tuple(run.done),
        loads=tuple(watch.loads),
        scrapes=tuple(watch.scrapes),
        held_before=dict(stack.idle),
        held_after=after,
        settled_after_s=settled_s,
        probes=probes,
        limit_s=limit,
        began_s=began,
        ended_s=time.monotonic(),
    )


def _undo(stack: FaultStack) -> None:
    """Whatever happened, nothing stays stopped and the clock is right."""
    stack.step_wall_clock(0)
    with contextlib.suppress(LookupError, ProcessLookupError):
        stack.signal_scheduler("decode", signal.SIGCONT)


async def _settle(
    client: httpx.AsyncClient, stack: FaultStack, idle: Mapping[Role, Mapping[str, int]]
) -> tuple[float, dict[Role, Mapping[str, int] | None]]:
    """Wait until both engines hold what they hold when idle, at most SETTLE_WITHIN_S; how long, and what they hold.

    Where that is not known yet: until they have no request.
    """
    began = time.monotonic()
    while True:
        after: dict[Role, Mapping[str, int] | None] = {}
        for role in ROLES_THAT_HOLD:
            after[role] = await holdings(client, stack, role)
        waited = time.monotonic() - began
        settled = all(held is not None and _is_idle(held, idle.get(role)) for role, held in after.items())
        if settled or waited >= SETTLE_WITHIN_S:
            return waited, after
        await asyncio.sleep(0.3)


def _is_idle(held: Mapping[str, int], idle: Mapping[str, int] | None) -> bool:
    if idle is not None:
        return held == idle
    return not any(count for name, count in held.items() if name.startswith("num_") or name.endswith("_reqs"))


async def _probe(client: httpx.AsyncClient, stack: FaultStack, episode: Episode) -> tuple[Outcome, ...]:
    """A few further requests, one after the other, each of which must succeed.

    After a worker was gone, or stood still for longer than the router's own checks allow, the first is asked again
    until the router has noticed that it is back, within SEEN_AGAIN_WITHIN_S.
    """
    rng = random.Random(f"probes {episode.seed}")
    unseen = any(action.deed in ("start decode", "start prefill", "refill prefill") for action in episode.actions)
    patience = time.monotonic() + (SEEN_AGAIN_WITHIN_S if unseen else 0.0)
    found: list[Outcome] = []
    while len(found) < PROBES:
        number = len(found)
        prompt = make_prompt(rng, rng.randint(10, 600), ANSWER_TOKENS)
        asked = Asked(f"probe-{episode.seed}-{number}", 0.0, "generate", number % 2 == 1, len(prompt.text))
        outcome = await _ask_once(client, stack, asked, prompt)
        if outcome.fate == "answered" or found or time.monotonic() >= patience:
            found.append(outcome)
        else:
            await asyncio.sleep(0.5)
    return tuple(found)


async def ask_further(stack: FaultStack, count: int) -> int:
    """How many of `count` further requests, eight at a time, are answered right."""
    rng = random.Random("further")
    prompts = [make_prompt(rng, int(10 * 80 ** rng.random()), ANSWER_TOKENS) for _ in range(count)]
    places = asyncio.Semaphore(8)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client:

        async def one(number: int, prompt: Prompt) -> bool:
            async with places:
                asked = Asked(f"further-{number}", 0.0, "generate", number % 2 == 1, len(prompt.text))
                outcome = await _ask_once(client, stack, asked, prompt)
                return outcome.fate == "answered" and outcome.right

        return sum(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))


async def _ask_once(client: httpx.AsyncClient, stack: FaultStack, asked: Asked, prompt: Prompt) -> Outcome:
    give_up = asyncio.Event()
    later = asyncio.get_running_loop().call_later(PROBE_WITHIN_S, give_up.set)
    try:
        return await request(client, stack.url, asked, prompt, give_up=give_up, moment=_at_once)
    finally:
        later.cancel()


async def _at_once(_: Moment) -> None:
    return None
