"""The timers of a stack as its processes have them, and what is said of one that cannot be asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
import pytest

from dsv4ctl import chain
from dsv4ctl.chain import NotTold, read_chain, told, told_timeouts_s, with_told
from dsv4ctl.doctor.timer_order import order_findings, unread_findings
from dsv4ctl.drift import Drift, with_told_timeout
from dsv4ctl.findings import Severity
from dsv4ctl.fleet import Place
from dsv4ctl.restart.running import Running
from dsv4ctl.state import WorkerRecord
from dsv4ctl.supervisors.base import UnitState
from dsv4ctl.targets import Target
from dsv4ctl.timers import Timer, timers_of
from serving.transfer import in_force

T, W = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"

Answer = Callable[[httpx.Request], httpx.Response]


def record(name: str, env: Mapping[str, str]) -> WorkerRecord:
    return WorkerRecord(name, name.partition("-")[0], name, "127.0.0.1", 1, {}, ("python",), env)


@dataclass
class Box:
    """A host on which every worker gives one answer."""

    answer: Answer

    def http(self, *, timeout_s: float) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.answer), timeout=timeout_s)


@dataclass
class Spot:
    host: Box


@dataclass
class Fleet:
    """As much of a stack as `read_chain` looks at."""

    fleet: dict[str, Spot]
    records: tuple[()] = field(default=())


def target(answer: Answer) -> Target:
    return cast(Target, Fleet({"local": Spot(Box(answer))}))


def info(*figures: Mapping[str, Any]) -> Answer:
    states = [{"dsv4": dict(one)} for one in figures]
    return lambda _: httpx.Response(200, json={"internal_states": states})


def stands(monkeypatch: pytest.MonkeyPatch, *workers: Running) -> None:
    monkeypatch.setattr(chain, "read_running", lambda *_: workers)


def runs(name: str, planned: Mapping[str, str], started: Mapping[str, str] | None, unread: str = "") -> Running:
    argv = None if started is None else ("python",)
    return Running(
        *("local", record(name, planned), None, UnitState.RUNNING, 7, (7,)), argv=argv, environ=started, unread=unread
    )


def shown(timers: tuple[Timer, ...]) -> dict[str, tuple[float | None, str]]:
    return {timer.letter: (timer.seconds, timer.source) for timer in timers}


def test_what_the_engine_tells_comes_before_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"waiting_timeout_s": 300, "heartbeat_interval_s": 2.0, "heartbeat_failures": 2}
    stands(monkeypatch, runs("decode-0", {W: "900"}, {W: "600"}))
    found = read_chain(target(info(figures)))
    assert shown(found.timers) == {"S": (120.0, "process"), "W": (300.0, "engine"), "H": (4.0, "engine")}
    assert found.unread == ()
    assert not any(timer.is_default for timer in found.timers if timer.letter == "H")


def test_a_stock_engine_tells_nothing_and_its_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stands(monkeypatch, runs("prefill-0", {T: "60"}, {T: "30"}))
    found = read_chain(target(lambda _: httpx.Response(200, json={"internal_states": [{"pid": 1}]})))
    assert shown(found.timers) == {"T": (30.0, "process"), "S": (120.0, "process"), "B": (300.0, "process")}
    assert found.unread == ()


def test_what_cannot_be_learnt_is_told_and_the_plan_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    gone = Running("local", record("decode-0", {}), None, UnitState.EXITED, None)
    stands(monkeypatch, runs("prefill-0", {T: "60"}, None, "not ours to look into"), gone)
    found = read_chain(target(refuse))
    assert {timer.source for timer in found.timers} == {"plan"}
    assert [(str(one), one.runs) for one in found.unread] == [
        ("prefill-0 cannot be read back (not ours to look into); what is planned is taken", True),
        ("prefill-0 does not tell its timers: connection refused", True),
        ("decode-0 does not run; what is planned is taken", False),
    ]
    assert {one.severity for one in unread_findings(found.unread)} == {Severity.UNKNOWN}


def test_a_value_that_is_none_is_told_and_the_engine_still_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    stands(monkeypatch, runs("decode-0", {}, {W: "soon"}))
    found = read_chain(target(info({"waiting_timeout_s": 20})))
    assert shown(found.timers)["W"] == (20.0, "engine")
    assert "SGLANG_DISAGGREGATION_WAITING_TIMEOUT is 'soon', which is no number" in str(found.unread)


def test_timers_that_were_changed_since_the_start_are_compared_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = runs("prefill-0", {}, {}), runs("decode-0", {}, {})
    stands(monkeypatch, prefill, decode)
    assert order_findings(read_chain(target(info({}))).timers) == []
    found = order_findings(read_chain(target(info({"inflight_timeout_s": 900.0}))).timers)
    assert [(one.code, one.severity) for one in found] == [("TIMERS_OUT_OF_ORDER", Severity.WARNING)]
    assert "is 900 s" in found[0].message


def test_of_several_ranks_the_one_that_waits_longest_counts_and_off_is_for_ever() -> None:
    timers = timers_of("prefill-0", "prefill", {}, ())
    ranks = ({"inflight_timeout_s": 5.0, "bootstrap_timeout_s": 20}, {"inflight_timeout_s": 8.0})
    assert shown(tuple(with_told(timers, ranks)))["T"] == (8.0, "engine")
    assert shown(tuple(with_told(timers, ranks)))["B"] == (20.0, "engine")
    assert shown(tuple(with_told(timers, (*ranks, {"inflight_timeout_s": 0.0}))))["T"] == (None, "engine")


@pytest.mark.parametrize("value", [True, "5", None, -1, float("nan"), []])
def test_a_figure_that_is_none_is_not_taken(value: object) -> None:
    timers = timers_of("prefill-0", "prefill", {}, ())
    assert tuple(with_told(timers, ({"inflight_timeout_s": value},))) == timers


def test_an_engine_with_a_key_is_asked_with_that_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        knows = request.headers.get("authorization") == "Bearer k1"
        return info({"bootstrap_timeout_s": 20})(request) if knows else httpx.Response(401)

    one = runs("prefill-0", {}, {})
    stands(monkeypatch, replace(one, argv=("python", "--api-key", "k1")))
    assert shown(read_chain(target(answer)).timers)["B"] == (20.0, "engine")


@pytest.mark.parametrize("document", [None, [], {}, {"internal_states": 1}])
def test_another_answer_is_none(document: object) -> None:
    with pytest.raises(NotTold):
        told(document)
    assert told({"internal_states": [1, {"dsv4": 1}, {"dsv4": {"a": 1}}]}) == ({"a": 1},)


@pytest.mark.parametrize(
    "answer",
    [lambda _: httpx.Response(401), lambda _: httpx.Response(200, text="no JSON")],
)
def test_an_answer_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    stands(monkeypatch, runs("decode-0", {}, {}))
    (one,) = read_chain(target(answer)).unread
    assert "decode-0 does not tell its timers: /server_info answers" in str(one)


def place(answer: Answer) -> Place:
    return cast(Place, Spot(Box(answer)))


def loads(*sections: Mapping[str, Any]) -> Answer:
    said = [{"dp_rank": rank, "dsv4": dict(one)} for rank, one in enumerate(sections)]
    return lambda _: httpx.Response(200, json={"loads": said})


def test_the_timeout_in_force_is_what_prefill_has_published() -> None:
    prefill = record("prefill-0", {})
    assert told_timeouts_s(place(loads({"timeout_s": 15.0}, {"timeout_s": 20.0})), prefill) == (20.0, 20.0)
    assert told_timeouts_s(place(loads({"timeout_s": 15.0}, {"timeout_s": 0.0})), prefill) == (0.0, 0.0)
    leased = {"timeout_s": 5.0, "standing_timeout_s": 60.0}
    assert told_timeouts_s(place(loads(leased)), prefill) == (5.0, 60.0)
    assert told_timeouts_s(place(loads({})), prefill) is None
    assert told_timeouts_s(place(lambda _: httpx.Response(404)), prefill) is None
    assert told_timeouts_s(place(loads({"timeout_s": 15.0})), record("decode-0", {})) is None


def test_drift_goes_by_the_timeout_in_force() -> None:
    planned = record("prefill-0", {T: "60"})
    other = Drift("A", "1", "2")
    at_start = Drift(T, "60", "30")
    assert with_told_timeout((other, at_start), planned, None) == (other, at_start)
    assert with_told_timeout((other, at_start), planned, 60.0) == (other,)
    (drift,) = with_told_timeout((), planned, 15.0)
    assert str(drift) == f"{T}: planned '60', running '15'"
    assert with_told_timeout((), record("prefill-0", {}), 120.0) == ()
    assert with_told_timeout((), record("prefill-0", {T: "0"}), 0.0) == ()
    assert with_told_timeout((at_start,), record("prefill-0", {T: "soon"}), 15.0) == (at_start,)


def test_a_manager_tells_the_timers_that_it_has() -> None:
    class Prefill:
        bootstrap_timeout = 300

    class Decode:
        waiting_timeout, heartbeat_interval, max_failures = 300, 2.0, 2

    assert in_force.timers(Prefill()) == {"bootstrap_timeout_s": 300}
    told_by_decode = {"waiting_timeout_s": 300, "heartbeat_interval_s": 2.0, "heartbeat_failures": 2}
    assert in_force.timers(Decode()) == told_by_decode
    assert in_force.timers(object()) == {}
