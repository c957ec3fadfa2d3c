"""Whatever a host says, nothing that is printed moves a cursor, forges a line, or turns one round."""

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.console import Column, Console, Output
from dsv4ctl.errors import OperationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.printable import printable_lines, without_colours

HOSTILE = "\033]0;pwned\007\033[2Jevil\u202e\u2066 \x9b31m\x08\r\u200b\ud800 done"


def finding(text: str) -> Finding:
    return Finding("HAZARD", Severity.ERROR, f"local: {text}", f"do {text}", {"why": text})


WAYS: Mapping[str, Callable[[Console, str], None]] = {
    "progress": lambda console, text: console.say(text),
    "a warning": lambda console, text: console.warn(text),
    "data": lambda console, text: console.data(text),
    "a table": lambda console, text: console.table([Column("a"), Column("b", fold=True)], [[text, text]], title=text),
    "a finding": lambda console, text: console.finding(finding(text), as_data=True),
    "a finding aside": lambda console, text: console.finding(finding(text)),
    "an error": lambda console, text: console.failed(OperationFailed(text, why=text, hint=text)),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_sign_of_a_host_reaches_the_terminal_that_cannot_be_printed(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    WAYS[way](Console("doctor", Output.TABLE), HOSTILE)
    printed = "".join(capsys.readouterr())
    assert "evil" in printed
    assert "done" in printed
    assert [sign for sign in printed if not sign.isprintable() and sign != "\n"] == []


@pytest.mark.parametrize("output", [Output.JSON, Output.JSONL])
def test_a_program_gets_it_whole(output: Output, capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE.replace("\ud800", "")
    console = Console("doctor", output)
    console.event({"said": text})
    console.finding(finding(text))
    console.result({"said": text})
    printed = capsys.readouterr().out
    assert not {"\033", "\u202e", "\x9b"} & set(printed)
    answer = json.loads(printed if output is Output.JSON else printed.splitlines()[-1])
    assert answer["result"]["said"] == text
    assert answer["findings"][0]["evidence"]["why"] == text


def test_a_finding_forges_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    Console("doctor", Output.TABLE).finding(finding("x\r\nerror GPU_MISSING forged"), as_data=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == ["error HAZARD local: x"]


@given(st.text())
def test_what_can_be_printed_stays_as_it_is(text: str) -> None:
    shown = printable_lines(text)
    assert all(sign.isprintable() or sign in "\n\t" for sign in shown)
    if all(sign.isprintable() or sign in "\n\t" for sign in text):
        assert shown == text


def test_a_log_loses_its_colours_alone() -> None:
    assert without_colours("\x1b[2m12:00\x1b[0m \x1b[32mINFO\x1b[0m up") == "12:00 INFO up"
