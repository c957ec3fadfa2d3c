"""`dsv4ctl probe` against real proxies before a server that answers rightly: whom it names, and its exit codes."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4ctl.app import app
from dsv4ctl.waiting import wait_until
from tests.engine import DSV4CTL, free_ports
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.recall_server import Recall, recall_server

IDLE_S = 0.3
ROUNDS = ("--rounds", "5", "--gaps", f"0,0.05,{IDLE_S * 1.5}")


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DSV4CTL_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[Recall]:
    with recall_server() as started:
        yield started


def probe(*words: str, hang_after: str = "1.5") -> Result:
    return CliRunner().invoke(app, ["probe", "--model", "m", "--hang-after", hang_after, *words])


def document(done: Result) -> Any:
    body = json.loads(done.stdout)
    assert body["command"] == "probe"
    return body


def test_an_honest_path_is_sound(server: Recall) -> None:
    with misbehaving_proxy(server.port) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, *ROUNDS)
    assert done.exit_code == 0, done.output
    *_, sentence = done.stdout.strip().splitlines()
    assert sentence.startswith("Every hop answers: 24 of 24 requests were answered rightly on reused and fresh")


@pytest.mark.parametrize("mode", [Mode.STALL_REUSED, Mode.FORGET_IDLE, Mode.CLOSE_ON_ARRIVAL, Mode.RESET_REUSED])
def test_a_proxy_that_breaks_kept_connections_is_named(server: Recall, mode: Mode) -> None:
    with misbehaving_proxy(server.port, mode, idle_s=IDLE_S) as proxy, misbehaving_proxy(proxy.port) as outer:
        done = probe("--via", outer.url, "--via", proxy.url, "--via", server.url, *ROUNDS, "-o", "json")
        body = document(done)
    assert done.exit_code == 1, done.output
    verdict = body["result"]["verdict"]
    assert verdict["hops"] == [proxy.url]
    assert (verdict["manner"], verdict["cleared"]) == ("fails on reused connections only", True)
    assert verdict["sentence"].startswith(f"The engine is not at fault: {server.url} answered")
    assert [finding["code"] for finding in body["findings"]] == ["HOP_BREAKS_KEEPALIVE"]


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        (Mode.STALL, "PROBE_HANGS"),
        (Mode.COMMENTS, "PROBE_HANGS"),
        (Mode.TOKENS, "PROBE_HANGS"),
        (Mode.FORGED, "PROBE_ERROR"),
        (Mode.RESET, "PROBE_CUT_OFF"),
        (Mode.CUT, "PROBE_CUT_OFF"),
    ],
)
def test_a_proxy_that_always_fails_is_named_by_the_single_generations(server: Recall, mode: Mode, code: str) -> None:
    # What does not end is waited for ten times as long.
    patience = "0.4" if mode is Mode.TOKENS else "1.5"
    with misbehaving_proxy(server.port, mode, cut_after=300) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, "-o", "json", hang_after=patience)
    assert done.exit_code == 1, done.output
    body = document(done)
    assert body["result"]["verdict"]["hops"] == [proxy.url]
    assert body["result"]["verdict"]["cleared"]
    assert [finding["code"] for finding in body["findings"]] == [code]


def test_a_server_that_closes_idle_connections_with_notice_is_not_at_fault(server: Recall) -> None:
    with misbehaving_proxy(server.port, Mode.CLOSE_IDLE, idle_s=IDLE_S) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, *ROUNDS)
    assert done.exit_code == 0, done.output
    assert re.search(rf"^{proxy.url} closes idle connections after 0\.\d s, with notice$", done.stdout, re.MULTILINE)


def test_what_is_behind_a_proxy_is_named_when_it_is_at_fault(server: Recall) -> None:
    server.spoil = lambda _: "zzzz-0000"
    with misbehaving_proxy(server.port) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, "-o", "json")
    body = document(done)
    assert done.exit_code == 1
    assert body["result"]["verdict"]["hops"] == [server.url]
    assert not body["result"]["verdict"]["cleared"]
    assert {finding["code"] for finding in body["findings"]} == {"PROBE_WRONG_ANSWER"}


def test_one_failure_that_does_not_come_again_is_inconclusive(server: Recall) -> None:
    answers = iter(["zzzz", *[None] * 99])

    def once(text: str) -> str:
        server.reason = "abort" if next(answers) else "stop"
        return text

    server.spoil = once
    done = probe("--via", server.url, "-o", "json")
    assert done.exit_code == 5, done.output
    assert [finding["code"] for finding in document(done)["findings"]] == ["PROBE_INCONCLUSIVE"]


def test_an_engine_that_stands_still_while_the_hop_before_it_is_asked_is_not_acquitted(server: Recall) -> None:
    def stand_still() -> None:
        # The engine's own two are answered, and the third request comes through the proxy.
        wait_until(lambda: len(server.bodies) == 2, deadline_s=20, what="the walk of the engine", interval_s=0.001)
        server.silent = True
        wait_until(lambda: len(server.bodies) > 3, deadline_s=20, what="the next questions")
        threading.Timer(2.2, lambda: setattr(server, "silent", False)).start()

    with misbehaving_proxy(server.port) as proxy, ThreadPoolExecutor(1) as pool:
        still = pool.submit(stand_still)
        done = probe("--via", proxy.url, "--via", server.url, "-o", "json")
        still.result()
    verdict = document(done)["result"]["verdict"]
    assert not verdict["cleared"], verdict
    assert (done.exit_code, verdict["kind"]) != (0, "every hop answers")


def test_gaps_without_rounds_are_a_slip_of_the_pen(server: Recall) -> None:
    done = probe("--via", server.url, "--gaps", "0,6")
    assert done.exit_code == 2
    assert "add --rounds N" in done.output


def test_a_hop_that_cannot_be_looked_at_is_told_from_one_that_fails(server: Recall) -> None:
    done = probe("--via", "http://no-such-host.invalid:1", "--via", server.url, "--yes", "-o", "json")
    assert done.exit_code == 4, done.output
    assert [finding["code"] for finding in document(done)["findings"]] == ["HOP_UNSEEN"]
    refused = probe("--via", f"http://127.0.0.1:{free_ports(1)[0]}", "--via", server.url, "-o", "json")
    assert refused.exit_code == 1
    assert [finding["code"] for finding in document(refused)["findings"]] == ["PROBE_ERROR"]


def test_a_proxy_that_refuses_what_is_large_is_named_for_just_that(server: Recall) -> None:
    with misbehaving_proxy(server.port, Mode.LARGE_REFUSED) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, "-o", "json")
    assert done.exit_code == 1, done.output
    verdict = document(done)["result"]["verdict"]
    assert (verdict["hops"], verdict["manner"], verdict["cleared"]) == (
        [proxy.url],
        "fails on large requests only",
        True,
    )
    assert "only when they were large (3 of 3), never when small (0 of 1)" in verdict["sentence"]


@pytest.mark.parametrize("output", ["table", "json"])
def test_what_a_hop_says_moves_no_cursor_and_forges_no_line(server: Recall, output: str) -> None:
    with misbehaving_proxy(server.port, Mode.FORGED) as proxy:
        done = probe("--via", proxy.url, "--via", server.url, "-o", output)
    said = done.stdout + done.stderr
    assert "pwned" in said
    assert not any(sign in said for sign in "\x1b\x9b\x07\x7f")
    assert not any(line.startswith("forged") for line in said.splitlines())


def test_a_half_that_could_not_be_looked_at_is_no_right_answer(server: Recall) -> None:
    done = probe("--via", f"http://no-such-host.invalid#1+{server.url}", "-o", "json")
    assert done.exit_code == 4, done.output
    assert [finding["code"] for finding in document(done)["findings"]] == ["HOP_UNSEEN"]


def test_a_worker_whose_health_has_no_end_does_not_hold_the_verdict_up(server: Recall) -> None:
    with misbehaving_proxy(server.port, Mode.TOKENS) as proxy:
        began = time.monotonic()
        done = probe("--via", f"{server.url}#1+{proxy.url}", hang_after="0.4")
    assert done.exit_code == 1, done.output
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 3),
        (("--via", "ftp://x"), 2),
        (("--via", "http://u:p@x"), 2),
        (("--via", "http://[::1"), 2),
        (("--via", "http://x/a b"), 2),
        (("--via", "http://x/\u00e9"), 2),
        (("--via", "http://x\r\nX: 1"), 2),
        (("--via", f"http://{'a' * 64}"), 2),
        (("--via", "http://x#99999+http://y"), 2),
        (("--via", "http://x", "--hang-after", "inf"), 2),
        (("--via", "http://x", "--request", '{"a": "\\ud800"}'), 2),
        (("--via", "http://x", "--request", '{"a": NaN}'), 2),
        (("--via", "http://x", "--request", "[" * 50_000), 2),
        (("--via", "http://x", "--request", '{"messages": []}'), 2),
        (("--via", "http://x", "--gaps", "soon"), 2),
        (("--via", "http://x", "--request", "{"), 2),
        (("--via", "http://x", "--api-key-file", "/nowhere"), 2),
        (("--via", "http://no-such-host.invalid", "--rounds", "30"), 6),
    ],
)
def test_what_is_refused_beforehand(words: tuple[str, ...], code: int) -> None:
    done = probe(*words)
    assert done.exit_code == code, done.output


def test_without_a_stack_the_model_must_be_named(server: Recall) -> None:
    done = CliRunner().invoke(app, ["probe", "--via", server.url])
    assert done.exit_code == 2
    assert "--model" in done.stderr


def test_a_stack_that_is_nearly_too_slow_is_said_to_be(server: Recall) -> None:
    server.think_s = 0.5
    slow = probe("--via", server.url, hang_after="0.9")
    assert "warning: a right answer began after 5" in slow.stderr
    assert "what is called hanging may be slow" in slow.stderr
    assert "hanging" not in probe("--via", server.url, hang_after="30").stderr


def test_a_key_is_sent_and_not_shown(server: Recall, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret-key\n")
    done = probe("--via", server.url, "--api-key-file", str(key), "--request", '{"seed": 7}', "-o", "jsonl")
    assert done.exit_code == 0, done.output
    assert "s3cret" not in done.output
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer s3cret-key"}
    assert {body["seed"] for body in server.bodies} == {7}
    *events, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"]["exchange"]["reply"]["outcome"] for event in events] == ["right", "right"]
    assert last["result"]["verdict"]["kind"] == "every hop answers"


def test_an_interrupted_probe_shows_what_it_found(server: Recall) -> None:
    with misbehaving_proxy(server.port, Mode.STALL_REUSED) as proxy:
        words = ["--model", "m", "--via", proxy.url, "--via", server.url, "--rounds", "4", "--gaps", "30"]
        process = subprocess.Popen(
            [DSV4CTL, "probe", *words, "-o", "jsonl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert all(b'"exchange"' in line for line in lines)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert time.monotonic() - began < 5
    last = json.loads(rest.splitlines()[-1])
    assert last["result"]["interrupted"] is True
    assert last["result"]["verdict"]["kind"] == "inconclusive"
    assert last["result"]["verdict"]["cleared"] is False
    assert len(last["result"]["exchanges"]) >= 6
