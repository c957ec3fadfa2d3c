"""`probe`'s connections, made by another host: the same outcomes, and what cannot be seen from here is not claimed."""

from collections.abc import Iterator

import pytest

from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.probe.link import Ask, Endpoint, Link
from dsv4ctl.probe.outcome import Act, Outcome, Reply
from dsv4ctl.probe.questions import body_of
from dsv4ctl.probe.report import peer_words
from dsv4ctl.probe.wire import Dialler
from dsv4ctl.signals import Interrupts
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.recall_server import Recall, recall_server
from tests.sshd import free_port

CODE = "bcdf-1234"
ASK = Ask(body_of("m", ({"role": "user", "content": f"Code 1: {CODE}\nCode 1:"},), {}, stream=True), CODE, 1.5)


@pytest.fixture
def server() -> Iterator[Recall]:
    with recall_server() as started:
        yield started


def replies(remote: SshHost, url: str, count: int = 2) -> list[Reply]:
    """The answers to some requests over one connection that the host makes."""
    dialler = Dialler(remote, Interrupts().check)
    link = Link(Endpoint("hop", url, dialler))
    try:
        return [link.ask(ASK) for _ in range(count)]
    finally:
        link.close()
        dialler.close()


def test_a_kept_connection_is_used_again(remote: SshHost, server: Recall) -> None:
    with misbehaving_proxy(server.port) as proxy:
        first, second = replies(remote, proxy.url)
        assert proxy.connections == 1
    assert (first.outcome, second.outcome, second.nth) == (Outcome.RIGHT, Outcome.RIGHT, 2)
    assert not first.peer.direct


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [
        (Mode.STALL_REUSED, {Outcome.HANGS}),
        (Mode.RESET_REUSED, {Outcome.CLOSED, Outcome.RESET}),
    ],
)
def test_what_breaks_a_kept_connection_is_seen_as_far_as_a_tunnel_shows_it(
    remote: SshHost, server: Recall, mode: Mode, outcomes: set[Outcome]
) -> None:
    with misbehaving_proxy(server.port, mode) as proxy:
        first, second, third = replies(remote, proxy.url, 3)
    assert (first.outcome, third.outcome) == (Outcome.RIGHT, Outcome.RIGHT)
    assert second.outcome in outcomes
    assert second.peer.acknowledged is None
    assert "seen through an SSH tunnel" in peer_words(second.peer)


def test_nobody_listens_there(remote: SshHost) -> None:
    (reply,) = replies(remote, f"http://127.0.0.1:{free_port()}", 1)
    assert (reply.outcome, reply.peer.act) == (Outcome.NO_CONNECTION, Act.NONE)


def test_a_host_that_is_lost_says_nothing_about_a_hop(remote: SshHost) -> None:
    remote.close()
    (reply,) = replies(remote, "http://127.0.0.1:1", 1)
    assert reply.outcome is Outcome.UNSEEN
