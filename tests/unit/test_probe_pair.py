"""Prefill and decode asked by halves, as the router asks them: here two servers that answer whatever comes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsv4ctl.app import app
from tests.misbehaving_proxy import Mode, misbehaving_proxy
from tests.recall_server import Recall, recall_server


@dataclass(frozen=True)
class Pair:
    """The two halves."""

    prefill: Recall
    decode: Recall

    @property
    def via(self) -> str:
        return f"{self.prefill.url}#9001+{self.decode.url}"

    @property
    def name(self) -> str:
        return f"{self.prefill.url}+{self.decode.url}"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DSV4CTL_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        halves = Pair(stack.enter_context(recall_server()), stack.enter_context(recall_server()))
        try:
            yield halves
        finally:
            halves.prefill.silent = halves.decode.silent = False


def probe(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["probe", "--model", "m", "--hang-after", "1", "-o", "json", *words])
    return done.exit_code, json.loads(done.stdout)


def test_both_halves_get_the_same_room_and_no_room_comes_twice(pair: Pair) -> None:
    code, document = probe("--via", pair.via, "--rounds", "3", "--gaps", "0")
    assert code == 0, document
    assert document["result"]["hops"][0]["hop"] == pair.name
    rooms = [body["bootstrap_room"] for body in pair.prefill.bodies]
    assert len(set(rooms)) == len(rooms) == 8
    assert all(0 <= room < 2**63 for room in rooms)
    assert sorted(rooms) == sorted(body["bootstrap_room"] for body in pair.decode.bodies)
    for body in (*pair.prefill.bodies, *pair.decode.bodies):
        assert (body["bootstrap_host"], body["bootstrap_port"]) == ("127.0.0.1", 9001)
    assert {body["stream"] for body in pair.decode.bodies} == {True}
    assert all("stream_options" not in body for body in pair.prefill.bodies)
    exchange = document["result"]["exchanges"][0]
    assert exchange["prefill"]["engine_s"] == {"queue": 0.5, "prefill": 1.0, "after_prefill": 2.0, "total": 4.0}


def test_where_prefills_time_went_is_shown(pair: Pair) -> None:
    done = CliRunner().invoke(app, ["probe", "--model", "m", "--via", pair.via])
    spent = "500 ms in its queue, 1.0 s computing, 2.0 s until its KV was gone, 4.0 s in all"
    assert f"{pair.name}: prefill's half spent {spent}\n" in done.stdout


def test_a_decode_that_stands_still_is_told_from_its_prefill(pair: Pair) -> None:
    pair.decode.silent = True
    with misbehaving_proxy(pair.decode.port) as router:
        code, document = probe("--via", router.url, "--via", pair.via)
    verdict = document["result"]["verdict"]
    assert code == 1
    assert verdict["hops"] == [pair.name]
    assert verdict["sentence"].startswith(f"The engine is at fault: asked directly, requests to {pair.name} hung every")
    assert (
        f"{pair.decode.url} does not answer /health_generate within 5 s, {pair.prefill.url} answers it"
        in (verdict["sentence"])
    )
    hangs, *_ = document["findings"]
    assert (hangs["code"], hangs["evidence"]["hop"]) == ("PROBE_HANGS", pair.name)
    assert "decode: sent nothing for" in hangs["message"]
    assert "prefill: its half was answered" in hangs["message"]


def test_a_prefill_that_fails_is_a_failure_though_decode_answers(pair: Pair) -> None:
    pair.prefill.status = 500
    code, document = probe("--via", pair.via)
    assert code == 1
    (finding,) = document["findings"]
    assert finding["code"] == "PROBE_ERROR"
    assert "decode answered rightly, and prefill did not: HTTP 500" in finding["message"]


def test_a_proxy_before_a_pair_that_answers_is_named(pair: Pair) -> None:
    with misbehaving_proxy(pair.decode.port, Mode.STALL_REUSED) as proxy:
        code, document = probe("--via", proxy.url, "--via", pair.via, "--rounds", "4", "--gaps", "0")
    assert code == 1
    assert document["result"]["verdict"]["hops"] == [proxy.url]
    assert document["result"]["verdict"]["sentence"].startswith(f"The engine is not at fault: {pair.name} answered")
