"""A question at a terminal: what ends it."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ASKS = """
import typer
from dsv4ctl.console import Output, command_session
from dsv4ctl.signals import interruptible
try:
    with command_session("asks", Output.TABLE) as console, interruptible() as interrupts:
        console.confirm("Go on?", yes=False, check=interrupts.check)
except typer.Exit as left:
    raise SystemExit(left.exit_code)
"""


@contextmanager
def asked() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has asked its question, and the terminal to answer it at."""
    terminal, theirs = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-c", ASKS], stdin=theirs, stderr=subprocess.PIPE, text=True) as child:
            try:
                assert child.stderr is not None
                assert child.stderr.read(len("Go on? [y/N] ")) == "Go on? [y/N] "
                yield child, terminal
            finally:
                child.kill()
    finally:
        os.close(theirs)
        os.close(terminal)


def test_one_ctrl_c_at_a_question_is_an_answer() -> None:
    with asked() as (child, _):
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 130


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 6), (b"\n", 6), (b"\x04", 6)])
def test_an_answer_is_taken_and_anything_but_yes_is_a_no(answer: bytes, code: int) -> None:
    with asked() as (child, terminal):
        os.write(terminal, answer)
        assert child.wait(10) == code
