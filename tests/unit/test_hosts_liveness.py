"""When silence counts as a loss, and how a signal's name becomes a status."""

import signal

import paramiko
import pytest

from dsv4ctl.hosts.liveness import SIGNALLED, UNNAMED_SIGNAL, SignalPacketizer, WatchedStream, returncode


class Wire:
    """A stream that gives what it was given, and times out when that is nothing."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.full = False

    def recv(self, size: int, /) -> bytes:
        if not self.waiting:
            raise TimeoutError
        return self.waiting.pop(0)

    def send(self, data: bytes, /) -> int:
        if self.full:
            raise TimeoutError
        return len(data)

    def settimeout(self, timeout: float | None, /) -> None: ...

    def close(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def stream(wire: Wire, clock: Clock) -> WatchedStream:
    return WatchedStream(wire, 6.0, clock)


def test_silence_without_a_question_is_no_loss(stream: WatchedStream, clock: Clock) -> None:
    clock.now += 1000
    with pytest.raises(TimeoutError):
        stream.recv(1)
    assert not stream.fell_silent


def test_silence_after_a_question_is(stream: WatchedStream, clock: Clock) -> None:
    stream.expect()
    clock.now += 6.0
    with pytest.raises(TimeoutError):
        stream.recv(1)
    clock.now += 0.1
    assert stream.recv(1) == b""
    assert stream.fell_silent


def test_a_writer_notices_too(stream: WatchedStream, wire: Wire, clock: Clock) -> None:
    wire.full = True
    stream.expect()
    with pytest.raises(TimeoutError):
        stream.send(b"x")
    clock.now += 6.1
    with pytest.raises(EOFError):
        stream.send(b"x")


def test_anything_that_comes_is_a_sign_of_life(stream: WatchedStream, wire: Wire, clock: Clock) -> None:
    stream.expect()
    clock.now += 5
    wire.waiting.append(b"x")
    assert stream.recv(1) == b"x"
    clock.now += 5
    with pytest.raises(TimeoutError):
        stream.recv(1)


def test_asking_again_does_not_move_the_bound(stream: WatchedStream, clock: Clock) -> None:
    stream.expect()
    clock.now += 4
    stream.expect()
    clock.now += 2.1
    assert stream.recv(1) == b""


def test_data_that_lies_ready_after_a_long_stop_counts(stream: WatchedStream, wire: Wire, clock: Clock) -> None:
    """This process may have been stopped; what arrived meanwhile is read before silence is judged."""
    stream.expect()
    wire.waiting.append(b"x")
    clock.now += 1000
    assert stream.recv(1) == b"x"
    with pytest.raises(TimeoutError):
        stream.recv(1)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, 0), (255, 255), (SIGNALLED + 9, -9), (SIGNALLED + UNNAMED_SIGNAL, -UNNAMED_SIGNAL)],
)
def test_returncode(status: int, expected: int) -> None:
    assert returncode(status) == expected


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "USR1", "bogus@example"])
def test_exit_signal_becomes_a_status(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = paramiko.Message()
    message.add_int(7)
    message.add_string("exit-signal")
    message.add_boolean(False)
    message.add_string(name)
    message.rewind()
    monkeypatch.setattr(paramiko.packet.Packetizer, "read_message", lambda self: (98, message))
    kind, changed = SignalPacketizer(None).read_message()  # type: ignore[arg-type]
    assert (kind, changed.get_int(), changed.get_text(), changed.get_boolean()) == (98, 7, "exit-status", False)
    known = signal.Signals.__members__.get(f"SIG{name}")
    assert returncode(changed.get_int()) == -(known.value if known else UNNAMED_SIGNAL)
