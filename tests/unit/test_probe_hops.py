"""The hops of a recorded stack, how many requests a probe can come to, and when it asks first."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.probe.conduct import Conduct, Questions, Record, most_requests
from dsv4ctl.probe.hops import Answered, Caller, Hop, Place, on_cpu, stack_hops
from dsv4ctl.probe.link import Ask
from dsv4ctl.probe.outcome import Act, Outcome, Peer, Reply, Times
from dsv4ctl.state import StackRecord, WorkerRecord

CPU = {"SGLANG_USE_CPU_ENGINE": "1"}


def worker(
    name: str, port: int, *, listen: str = "127.0.0.1", cpu: bool = True, bootstrap: int | None = None
) -> WorkerRecord:
    role = name.split("-")[0]
    ports = {"http": port} | ({"bootstrap": bootstrap} if bootstrap else {})
    return WorkerRecord(name, role, f"dsv4-x-{name}", listen, port, ports, (), CPU if cpu and role != "router" else {})


def record(*workers: WorkerRecord) -> StackRecord:
    return StackRecord("x", "x", "process", "", "", "m", ready=True, workers=workers)


def test_a_stack_on_two_hosts_has_its_router_first_and_every_pair() -> None:
    records = (
        ("a", record(worker("prefill-0", 1, bootstrap=9), worker("router", 2))),
        ("b", record(worker("decode-0", 3, listen="0.0.0.0"), worker("decode-1", 4, listen="10.0.0.2"))),
    )
    hops = stack_hops(records, 2)
    assert [(hop.name, hop.depth, hop.engine) for hop in hops] == [
        ("router", 2, False),
        ("prefill-0+decode-0", 3, True),
        ("prefill-0+decode-1", 3, True),
    ]
    assert hops[1].places == (
        Place("prefill-0", "http://127.0.0.1:1", "a", 9),
        Place("decode-0", "http://127.0.0.1:3", "b"),
    )
    assert hops[2].server.url == "http://10.0.0.2:4"


def test_a_single_server_is_its_own_engine() -> None:
    (hop,) = stack_hops([("a", record(worker("unified-0", 1)))], 0)
    assert (hop.name, hop.depth, hop.engine, hop.prefill) == ("unified-0", 0, True, None)


def test_only_a_stack_all_of_whose_engines_are_on_the_cpu_is_harmless() -> None:
    cpu = record(worker("prefill-0", 1), worker("decode-0", 2), worker("router", 3))
    assert on_cpu([("a", cpu)])
    assert not on_cpu([("a", cpu), ("b", record(worker("decode-1", 4, cpu=False)))])
    assert not on_cpu([("a", record(worker("router", 3)))])
    assert not on_cpu([])


class Clockwork:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def check(self) -> None:
        """Nobody wants to end."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


class Fails(Caller):
    """A hop that fails as drawn: once for each True."""

    def __init__(self, drawn: list[bool]) -> None:
        self._drawn = drawn

    def look(self) -> None:
        """Nothing is seen."""

    def close(self) -> None:
        """Nothing is kept."""

    def ask(self, ask: Ask) -> Answered:
        failed = self._drawn.pop() if self._drawn else False
        outcome = Outcome.HANGS if failed else Outcome.RIGHT
        return Answered(Reply(outcome, "", Times(), Peer(Act.ANSWERED), nth=1, text=ask.answer or ""))


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(0, 6),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_a_probe_never_sends_more_than_was_said_beforehand(
    drawn: list[bool], rounds: int, concurrency: int, count: int
) -> None:
    questions = Questions("m", 20, 40, 10, 1.0, rounds=rounds, concurrency=concurrency, gaps_s=(0.0, 4.0))
    hops = [Hop(depth, Place(f"http://{depth}", f"http://{depth}", "local")) for depth in range(count)]
    asked = Record(lambda exchange: None)
    time = Clockwork()

    conduct = Conduct(questions, lambda hop: Fails(drawn), asked, time, random.Random(1), time.clock)
    conduct.walk(hops)
    if rounds:
        conduct.converse(conduct.talkative(hops))
    assert len(asked.exchanges) <= most_requests(questions, count, count)


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_path_that_answers_costs_what_it_looks_like(rounds: int) -> None:

    questions = Questions("m", 20, 40, 10, 1.0, rounds=rounds, gaps_s=(0.0, 60.0))
    hops = [Hop(depth, Place(f"http://{depth}", f"http://{depth}", "local")) for depth in range(2)]
    asked, time = Record(lambda exchange: None), Clockwork()
    conduct = Conduct(questions, lambda hop: Fails([]), asked, time, random.Random(1), time.clock)
    conduct.walk(hops)
    conduct.converse(hops)
    assert len(asked.exchanges) == 2 * 2 + 2 * 2 * rounds
    assert {exchange.reply.outcome for exchange in asked.exchanges} == {Outcome.RIGHT}
