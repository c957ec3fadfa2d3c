"""One request on one connection: what became of it, and what the other side of TCP did, on real sockets."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dsv4ctl.errors import Interrupted
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.probe.link import Ask, Endpoint, Link
from dsv4ctl.probe.outcome import Act, Outcome, Reply
from dsv4ctl.probe.questions import body_of
from dsv4ctl.probe.wire import Dialler
from dsv4ctl.signals import Interrupts
from tests.engine import free_ports
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.recall_server import Recall, recall_server

PATIENCE_S = 0.8
IDLE_S = 0.3
CODE = "bcdf-1234"
BODY = body_of("m", ({"role": "user", "content": f"Code 1: {CODE}\nCode 1:"},), {}, stream=True)
ASK = Ask(BODY, CODE, PATIENCE_S)


@pytest.fixture
def server() -> Iterator[Recall]:
    with recall_server() as started:
        yield started


@contextmanager
def link_to(url: str, interrupts: Interrupts | None = None) -> Iterator[Link]:
    dialler = Dialler(LocalHost(), (interrupts or Interrupts()).check)
    link = Link(Endpoint("hop", url, dialler))
    try:
        yield link
    finally:
        link.close()
        dialler.close()


def through(server: Recall, mode: Mode, *, gap_s: float = 0.0, requests: int = 2) -> list[Reply]:
    """The replies to some requests over one link through a proxy."""
    with misbehaving_proxy(server.port, mode, idle_s=IDLE_S, cut_after=400) as proxy, link_to(proxy.url) as link:
        replies = []
        for number in range(requests):
            if number:
                time.sleep(gap_s)
            replies.append(link.ask(ASK))
        return replies


def test_an_honest_proxy_answers_on_a_kept_connection(server: Recall) -> None:
    first, second = through(server, Mode.HONEST, gap_s=IDLE_S * 1.5)
    assert (first.outcome, first.nth, first.peer.act) == (Outcome.RIGHT, 1, Act.ANSWERED)
    assert (second.outcome, second.nth) == (Outcome.RIGHT, 2)
    times = first.times
    assert times.connect_s is not None
    assert times.first_byte_s is not None
    assert times.first_token_s is not None
    assert times.last_byte_s is not None
    assert 0 < times.connect_s <= times.first_byte_s <= times.first_token_s <= times.last_byte_s <= times.ended_s
    assert second.times.connect_s is None
    assert (first.prompt_tokens, first.completion_tokens) == (7, 5)


@pytest.mark.parametrize(
    ("mode", "gap_s", "outcome", "act"),
    [
        (Mode.STALL_REUSED, 0.0, Outcome.HANGS, Act.SILENT),
        (Mode.FORGET_IDLE, IDLE_S * 1.5, Outcome.HANGS, Act.SILENT),
        (Mode.CLOSE_ON_ARRIVAL, IDLE_S * 1.5, Outcome.CLOSED, Act.CLOSED),
        (Mode.RESET_REUSED, 0.0, Outcome.RESET, Act.RESET),
    ],
)
def test_a_proxy_that_breaks_kept_connections_is_seen_at_it(
    server: Recall, mode: Mode, gap_s: float, outcome: Outcome, act: Act
) -> None:
    first, second, third = through(server, mode, gap_s=gap_s, requests=3)
    assert first.outcome is Outcome.RIGHT
    assert (second.outcome, second.nth, second.peer.act) == (outcome, 2, act)
    assert second.peer.acknowledged is (True if act is Act.SILENT else None)
    assert second.peer.direct
    # What failed is not used again.
    assert (third.outcome, third.nth) == (Outcome.RIGHT, 1)


@pytest.mark.parametrize(
    ("mode", "outcome", "says"),
    [
        (Mode.STALL, Outcome.HANGS, "sent nothing for 0.8"),
        (Mode.COMMENTS, Outcome.HANGS, "keep-alive comments"),
        (Mode.RESET, Outcome.RESET, "reset"),
        (Mode.CUT, Outcome.CUT, "closed the connection after 400 bytes"),
    ],
)
def test_a_proxy_that_fails_always(server: Recall, mode: Mode, outcome: Outcome, says: str) -> None:
    (reply,) = through(server, mode, requests=1)
    assert reply.outcome is outcome
    assert says in reply.detail


def test_a_connection_that_was_closed_with_notice_is_replaced_and_its_age_told(server: Recall) -> None:
    first, second = through(server, Mode.CLOSE_IDLE, gap_s=IDLE_S * 2)
    assert (second.outcome, second.nth) == (Outcome.RIGHT, 1)
    assert first.peer.idle_close_s is None
    assert second.peer.idle_close_s is not None


def test_a_link_that_looks_knows_when_it_was_closed(server: Recall) -> None:
    with misbehaving_proxy(server.port, Mode.CLOSE_IDLE, idle_s=IDLE_S) as proxy, link_to(proxy.url) as link:
        link.ask(ASK)
        for _ in range(60):
            time.sleep(0.01)
            link.look()
        closed = link.ask(ASK).peer.idle_close_s
    assert closed == pytest.approx(IDLE_S, abs=0.15)


@pytest.mark.parametrize(
    ("change", "outcome", "says"),
    [
        ({"spoil": lambda _: "zzzz-9999"}, Outcome.WRONG, "got 'zzzz-9999'"),
        ({"spoil": lambda _: ""}, Outcome.EMPTY, "no text"),
        ({"spoil": lambda text: text + "ha" * 40}, Outcome.REPEATS, "'ha'"),
        ({"reason": "abort"}, Outcome.ERROR_IN_200, "'abort'"),
        ({"error_event": True}, Outcome.ERROR_IN_200, "the transfer failed"),
        ({"done": False}, Outcome.ENDED_EARLY, "without [DONE]"),
        ({"status": 503}, Outcome.STATUS, "HTTP 503: "),
    ],
)
def test_a_server_that_answers_badly(server: Recall, change: dict[str, object], outcome: Outcome, says: str) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    with link_to(server.url) as link:
        reply = link.ask(ASK)
    assert reply.outcome is outcome
    assert says in reply.detail


def test_a_document_carries_the_engines_times(server: Recall) -> None:
    with link_to(server.url) as link:
        reply = link.ask(Ask({**BODY, "stream": False}, CODE, PATIENCE_S))
    assert reply.outcome is Outcome.RIGHT
    assert reply.engine_s == {"queue": 0.5, "prefill": 1.0, "after_prefill": 2.0, "total": 4.0}


def test_nobody_listens() -> None:
    with link_to(f"http://127.0.0.1:{free_ports(1)[0]}") as link:
        reply = link.ask(ASK)
    assert (reply.outcome, reply.peer.act, reply.nth) == (Outcome.NO_CONNECTION, Act.NONE, 0)


def test_a_name_that_nobody_knows_says_nothing_about_a_hop() -> None:
    with link_to("http://no-such-host.invalid:1") as link:
        assert link.ask(ASK).outcome is Outcome.UNSEEN


def test_an_interrupt_is_heard_within_a_moment(server: Recall) -> None:
    interrupts = Interrupts()
    with misbehaving_proxy(server.port, Mode.STALL) as proxy, link_to(proxy.url, interrupts) as link:
        interrupts.ask("SIGINT")
        began = time.monotonic()
        with pytest.raises(Interrupted):
            link.ask(Ask(BODY, CODE, 30.0))
        assert time.monotonic() - began < 2


def test_headers_are_sent(server: Recall) -> None:
    with link_to(server.url) as link:
        link.ask(Ask(BODY, CODE, PATIENCE_S, {"Authorization": "Bearer secret"}))
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(Ask(BODY, CODE, PATIENCE_S, {"Authorization": "Bearer secret"}))


def test_a_key_that_comes_back_is_not_shown(server: Recall) -> None:
    server.spoil = lambda _: "Incorrect API key provided: secret-key"
    with link_to(server.url) as link:
        reply = link.ask(Ask(BODY, CODE, PATIENCE_S, {"Authorization": "Bearer secret-key"}))
    assert "secret-key" not in repr(reply)
    assert "<redacted sha256:" in reply.text
