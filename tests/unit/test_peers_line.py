"""A line to a process that lives, ends, is stopped, or was never there; with real sockets and real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from serving.peers import line
from serving.peers.line import REFUSALS, Line
from tests.engine import free_ports

LISTENER = """
import socket, sys, time
listening = socket.create_server(("127.0.0.1", 0), backlog=2)
print(listening.getsockname()[1], flush=True)
kept = []
while True:
    connection, _ = listening.accept()
    connection.sendall(b"x" * 10)
    kept.append(connection)
"""


@pytest.fixture
def listener() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that accepts connections, greets on each as ZeroMQ does, and keeps them."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait(10)
    process.stdout.close()


def look_until_gone(held: Line, times: int = 20) -> int:
    """How many looks it took."""
    for count in range(1, times + 1):
        held.look()
        if held.is_gone:
            return count
        time.sleep(0.01)
    raise AssertionError("not gone")


def test_a_process_that_lives_is_not_gone(listener: tuple[subprocess.Popen[str], int]) -> None:
    held = Line(("127.0.0.1", listener[1]))
    for _ in range(5):
        held.look()
        assert held.is_open
        assert not held.is_gone
    held.close()


def test_a_killed_process_is_noticed_at_once_and_is_gone_after_two_refusals(
    listener: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = listener
    held = Line(("127.0.0.1", port))
    held.look()
    line.wait([held], 5)  # its greeting
    held.look()
    began = time.monotonic()
    process.kill()
    process.wait(10)
    line.wait([held], 10)
    assert time.monotonic() - began < 1
    assert look_until_gone(held) == REFUSALS
    assert "refused 2 connections" in held.why


def test_a_stopped_process_is_not_gone_however_often_it_is_looked_at(
    listener: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = listener
    held = Line(("127.0.0.1", port))
    held.look()
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(50):
        held.look()
        assert held.is_open
    os.kill(process.pid, signal.SIGCONT)
    held.close()


def test_nobody_there_is_gone_after_two_looks() -> None:
    (port,) = free_ports(1)
    assert look_until_gone(Line(("127.0.0.1", port))) == REFUSALS


def test_a_listener_that_is_replaced_is_not_gone() -> None:
    (port,) = free_ports(1)
    held = Line(("127.0.0.1", port))
    held.look()
    opened = [held.is_open]
    with socket.create_server(("127.0.0.1", port)):
        held.look()
        opened.append(held.is_open)
    assert opened == [False, True]
    held.look()
    assert not held.is_gone, "the refusal before the connection counts no more"
    held.close()


def test_a_host_that_does_not_answer_is_not_gone_after_two_attempts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        kept = []
        for _ in range(3):  # a backlog that is full answers nothing any more
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            kept.append(filler)
        held = Line(address)
        held.look()
        held.look()
        assert not held.is_open
        assert not held.is_gone
        assert "no answer to 2 connections" in held.why
        for filler in kept:
            filler.close()


def test_a_want_of_file_descriptors_says_nothing_about_the_other_end(
    listener: tuple[subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = Line(("127.0.0.1", listener[1]))
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        for _ in range(5):
            with pytest.raises(OSError, match="Too many open files"):
                held.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not held.is_gone
    held.look()
    assert held.is_open
    held.close()
