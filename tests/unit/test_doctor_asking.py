"""Many questions at once: each has its own deadline, and one that hangs does not stop the others."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dsv4ctl.doctor.asking import LONGEST_ANSWER, Answer, Question, ask
from dsv4ctl.errors import OperationFailed
from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.waiting import wait_until


def test_answers_come_back_whole_and_apart() -> None:
    questions = [
        Question("two words", "printf 'a b\\nsecond 1 0 0\\n'; printf 'only said\\n' >&2"),
        Question("quotes", """echo "it's" '"so"'"""),
        Question("no newline", "printf x"),
        Question("nothing", ":"),
    ]
    with closing(LocalHost()) as host:
        answers = ask(host, questions)
    assert answers == {
        "two words": Answer("a b\nsecond 1 0 0\n"),
        "quotes": Answer('it\'s "so"\n'),
        "no newline": Answer("x"),
        "nothing": Answer(""),
    }


def test_what_fails_or_hangs_says_so_and_holds_nobody_up() -> None:
    questions = [
        Question("hangs", "trap '' TERM; while :; do sleep 1; done", within_s=0.5),
        Question("fails", "echo half; echo first >&2; echo 'no such device' >&2; exit 3"),
        Question("no words", "exit 4"),
        Question("well", "echo well"),
    ]
    began = time.monotonic()
    with closing(LocalHost()) as host:
        answers = ask(host, questions)
    assert time.monotonic() - began < 5
    assert answers["hangs"].failure == "no answer within 0.5 s"
    assert answers["fails"] == Answer("half\n", "no such device")
    assert answers["no words"].failure == "exit status 4"
    assert answers["well"] == Answer("well\n")


def test_an_answer_has_a_largest_size_and_a_root(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cmdline").write_text("quiet")
    questions = [Question("long", "yes | head -c 3000000"), Question("root", 'cat "$1/proc/cmdline"')]
    with closing(LocalHost()) as host:
        answers = ask(host, questions, root=str(tmp_path))
    assert len(answers["long"].text) == LONGEST_ANSWER
    assert answers["root"].text == "quiet"


class Kept(LocalHost):
    """A host that only notes what it is asked to run."""

    argv: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        self.argv = tuple(argv)
        raise OperationFailed("only noted")


def answers_in(folder: Path, question: Question) -> "subprocess.Popen[bytes]":
    """The run of a question whose answers lie under `folder`, begun."""
    with closing(Kept()) as host:
        with pytest.raises(OperationFailed):
            ask(host, [question])
        environ = {**os.environ, "TMPDIR": str(folder)}
        return subprocess.Popen(
            host.argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )


@pytest.mark.parametrize("ended_by", ["its end", "SIGTERM", "nobody who reads"])
def test_no_answers_are_left_behind_on_the_host(ended_by: str, tmp_path: Path) -> None:
    with answers_in(tmp_path, Question("late", "sleep 0.5; echo secret")) as asked:
        wait_until(lambda: any(tmp_path.rglob("*.out")), deadline_s=10, what="the question")
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("dsv4-doctor.")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert asked.stdout is not None
        if ended_by == "SIGTERM":
            os.killpg(asked.pid, signal.SIGTERM)
        elif ended_by == "nobody who reads":
            asked.stdout.close()
        else:
            assert b"secret" in asked.stdout.read()
        asked.wait(timeout=10)
    assert list(tmp_path.iterdir()) == []
