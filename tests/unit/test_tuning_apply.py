"""Applying a timeout: it is in force on all engines in the end, or on none; whatever fails, and wherever."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import CannotLook, Dsv4Error, Interrupted, Refused, VerificationFailed
from dsv4ctl.plan import execute
from dsv4ctl.signals import Interrupts
from dsv4ctl.tuning.apply_plan import Change, apply_plan
from dsv4ctl.tuning.applying import ApplyAction, Applying, taking_back
from dsv4ctl.tuning.control import standing
from serving.inflight.timeout import InForce
from tests.timeout_engine import TimeoutEngine

BEFORE_S, AFTER_S, SOAK_S = 60.0, 15.0, 4.0
WORKERS = ("prefill-0", "prefill-1")


class Unwritten:
    def write(self, event: str, **_: object) -> None: ...


class Act:
    """One --apply on two engines, whose time goes by while it sleeps."""

    def __init__(self, soak_s: float = SOAK_S, expected_per_s: float = 0.0) -> None:
        self.engines = {name: TimeoutEngine(InForce.standing(BEFORE_S)) for name in WORKERS}
        self.change = Change(
            AFTER_S,
            dict.fromkeys(WORKERS, BEFORE_S),
            dict.fromkeys(WORKERS, "local"),
            "local",
            soak_s,
            expected_per_s,
            None,
        )
        self.warned: list[str] = []
        self.written: list[str] = []
        self.on_sleep: Callable[[], None] = lambda: None
        self.clients = [engine.client(name) for name, engine in self.engines.items()]

    def sleep(self, seconds: float) -> None:
        for engine in self.engines.values():
            engine.goes_by(seconds)
        self.on_sleep()

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.monotonic", lambda: self.engines[WORKERS[0]].now_s)
        work = Applying(
            change=self.change,
            engines=self.clients,
            sleep=self.sleep,
            remember=lambda: self.written.append("remembered"),
            forget=lambda: self.written.append("forgotten"),
            record=lambda: self.written.append("recorded"),
            unrecord=lambda: self.written.append("unrecorded"),
            write=dict,
        )
        with taking_back(work, self.warned.append):
            execute(
                apply_plan(self.change),
                lambda step: ApplyAction(work, step),
                journal=Unwritten(),
                interrupts=Interrupts(),
                report=lambda *_: None,
                clock=lambda: 0.0,
            )

    def in_force(self) -> list[tuple[float, float]]:
        return [(engine.in_force.timeout_s, engine.in_force.standing_s) for engine in self.engines.values()]


def test_it_is_on_a_lease_while_it_is_watched_and_lasts_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act()
    seen: list[list[tuple[float, float]]] = []
    act.on_sleep = lambda: seen.append(act.in_force())
    act.run(monkeypatch)
    assert set(map(tuple, seen)) == {((AFTER_S, BEFORE_S),) * 2}
    assert act.in_force() == [(AFTER_S, AFTER_S)] * 2
    act.sleep(10_000)
    assert act.in_force() == [(AFTER_S, AFTER_S)] * 2
    assert (act.written, act.warned) == (["remembered", "recorded"], [])


def test_what_is_in_force_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act()
    act.engines["prefill-1"].in_force = InForce.standing(AFTER_S)
    act.change = Change(
        AFTER_S,
        {"prefill-0": BEFORE_S, "prefill-1": AFTER_S},
        act.change.hosts,
        "local",
        SOAK_S,
        0.0,
        None,
    )
    act.run(monkeypatch)
    assert act.engines["prefill-1"].changes == []
    assert act.in_force() == [(AFTER_S, AFTER_S)] * 2


@pytest.mark.parametrize(
    ("expected_per_s", "fires", "kept"), [(0.0, 0, True), (0.0, 1, False), (0.5, 6, True), (0.5, 7, False)]
)
def test_more_fires_than_predicted_take_it_back(
    expected_per_s: float, fires: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = Act(expected_per_s=expected_per_s)

    def fire() -> None:
        act.engines["prefill-1"].fires = fires

    act.on_sleep = fire
    if kept:
        act.run(monkeypatch)
        assert act.in_force() == [(AFTER_S, AFTER_S)] * 2
        return
    with pytest.raises(VerificationFailed, match=f"{fires} on prefill-1"):
        act.run(monkeypatch)
    assert act.in_force() == [(BEFORE_S, BEFORE_S)] * 2
    assert act.warned == [f"{worker} on local has 60 s again, read back" for worker in WORKERS]


def test_an_engine_that_starts_anew_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act()
    act.engines["prefill-0"].fires = 5

    def anew() -> None:
        act.engines["prefill-0"].fires = 0

    act.on_sleep = anew
    with pytest.raises(VerificationFailed, match="prefill-0 started anew"):
        act.run(monkeypatch)
    assert act.in_force() == [(BEFORE_S, BEFORE_S)] * 2


@given(st.sampled_from(WORKERS), st.integers(0, 12))
def test_whatever_request_is_lost_all_have_it_or_none_after_the_lease(worker: str, after: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        act = Act()
        act.engines[worker].lost_after = after
        try:
            act.run(patched)
        except CannotLook:
            act.engines[worker].goes_by(act.change.lease_s + 1)
            found = act.in_force()
            # Where the connection went after it was made to last, nobody can take that back, and it is said.
            if found != [(BEFORE_S, BEFORE_S)] * 2:
                (trouble,) = [words for words in act.warned if words.startswith(worker)]
                assert "is not back at 60 s" in trouble
                assert "its lease" not in trouble
        else:
            assert act.in_force() == [(AFTER_S, AFTER_S)] * 2


def test_ctrl_c_while_it_is_watched_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act()

    def stop() -> None:
        raise Interrupted("interrupted (SIGINT)")

    act.on_sleep = stop
    with pytest.raises(Interrupted):
        act.run(monkeypatch)
    assert act.in_force() == [(BEFORE_S, BEFORE_S)] * 2


def test_what_somebody_else_set_meanwhile_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act()

    def other() -> None:
        act.engines["prefill-1"].in_force = InForce.standing(45.0)

    act.on_sleep = other
    with pytest.raises(Refused, match="prefill-1 on local has 45 s, and not 15 s any more"):
        act.run(monkeypatch)
    assert act.in_force() == [(BEFORE_S, BEFORE_S), (45.0, 45.0)]
    assert act.written == []
    assert [words.split(":")[0] for words in act.warned] == [
        "prefill-0 on local has 60 s again, read back",
        "prefill-1 on local is not back at 60 s",
    ]


def test_what_is_set_by_somebody_else_when_it_is_to_last_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    act = Act(soak_s=0)
    act.engines["prefill-1"].in_force = InForce.standing(45.0)
    with pytest.raises(Refused, match="prefill-1 on local did not take 15 s in place of 60 s"):
        act.run(monkeypatch)
    assert act.in_force() == [(BEFORE_S, BEFORE_S), (45.0, 45.0)]
    assert act.written == ["remembered", "forgotten"]


def test_an_engine_that_takes_it_and_does_not_do_it_is_caught() -> None:
    engine = TimeoutEngine(InForce.standing(BEFORE_S), deaf=True)
    with pytest.raises(VerificationFailed, match=r"says 60 s .* and 15 s \(15 s\) should be in force"):
        engine.client().put(AFTER_S, was_s=BEFORE_S)


def test_a_lease_that_runs_is_somebody_elses() -> None:
    engine = TimeoutEngine(InForce.standing(BEFORE_S).leased(5.0, 30.0, 0.0))
    with pytest.raises(Refused, match="has 5 s on a lease that ends in 30 s, and then 60 s again"):
        standing([engine.client()])


def test_ending_a_lease_twice_is_harmless() -> None:
    engine = TimeoutEngine(InForce.standing(BEFORE_S))
    client = engine.client()
    client.put(5.0, was_s=BEFORE_S, lease_s=30.0)
    assert client.end_lease().timeout_s == BEFORE_S
    assert client.end_lease().timeout_s == BEFORE_S


def test_an_engine_that_does_not_tell_cannot_be_looked_at() -> None:
    engine = TimeoutEngine(InForce.standing(BEFORE_S), lost_after=0)
    with pytest.raises(Dsv4Error, match="prefill-0 on local did not answer /server_info"):
        engine.client().in_force()
