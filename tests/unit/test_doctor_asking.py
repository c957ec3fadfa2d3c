"""Many questions at once: each has its own deadline, and one that hangs does not stop the others."""

import time
from contextlib import closing
from pathlib import Path

from dsv4ctl.doctor.asking import LONGEST_ANSWER, Answer, Question, ask
from dsv4ctl.hosts.local import LocalHost


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
