"""The first Ctrl-C waits for a safe point, a second one does not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dsv4ctl.errors import Interrupted
from dsv4ctl.signals import interruptible
from dsv4ctl.waiting import wait_until

CHILD = """
import sys
from dsv4ctl.signals import interruptible
with interruptible() as interrupts:
    print("ready", flush=True)
    try:
        {body}
    except KeyboardInterrupt:
        print("now", flush=True)
"""


def test_a_signal_ends_the_sleep_at_once() -> None:
    began = time.monotonic()
    with interruptible() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="SIGINT"):
            interrupts.sleep(30)
    assert time.monotonic() - began < 5


UNDER_FIRE = """
import random, signal, time
from dsv4ctl.errors import Interrupted
from dsv4ctl.signals import Interrupts
rng, interrupts, heard = random.Random(4), Interrupts(), 0
signal.signal(signal.SIGALRM, lambda *_: interrupts.ask("SIGALRM"))
end = time.monotonic() + 4
while time.monotonic() < end:
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-4))
    try:
        while True:
            interrupts.sleep(1e-4)
    except Interrupted:
        interrupts.acknowledge()
        heard += 1
print(heard)
"""


def test_a_signal_at_any_moment_of_the_sleep_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_FIRE], stdout=subprocess.PIPE, text=True, timeout=30)
    assert int(done.stdout) > 1000


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_is_for_now() -> None:
    body = (
        "[None for _ in iter(lambda: interrupts.asked, True)]; print('asked', flush=True); [None for _ in iter(int, 1)]"
    )
    with subprocess.Popen([sys.executable, "-c", CHILD.format(body=body)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "asked\n"
        # One Ctrl-C often arrives twice (from the terminal and from make), so for a moment a second one is the first.

        def pressed_again() -> bool:
            child.send_signal(signal.SIGINT)
            return child.poll() is not None

        wait_until(pressed_again, deadline_s=10, what="the end")
        assert child.stdout.read() == "now\n"


def test_one_press_that_arrives_twice_is_one() -> None:
    with interruptible() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.check()
