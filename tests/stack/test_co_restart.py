"""Co-restarts of the real stack: under load, with pinned requests, cut off, refused, and rolled back."""

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from dsv4ctl.waiting import wait_until
from tests.co_restarts import Stack
from tests.engine import Dsv4, assert_gone, shm_files, write_profile
from tests.retrying import RetryingClients, now

pytestmark = [pytest.mark.stack, pytest.mark.beside, pytest.mark.timeout(400)]

CLIENTS = 8


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that these tests restart, one after the other, while a `serve` in the foreground watches over it."""
    folder = tmp_path_factory.mktemp("co-restart")
    before = shm_files()
    served = Stack(Dsv4(folder / "state"), write_profile(folder, "cr"))
    said: list[str] = []
    with served.dsv4.start("serve", "--set", "SGLANG_LOG_MS=1", served.profile.path) as serving:
        hearing = Thread(target=lambda: said.extend(serving.stderr or ()))
        hearing.start()
        wait_until(lambda: any("Ctrl-C ends the stack" in line for line in said), deadline_s=120, what="the stack")
        yield served
        # It has taken every restart for one, and ends what runs now.
        assert serving.poll() is None, said
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 130, said
        hearing.join(10)
    assert any("its new workers are watched" in line for line in said)
    assert_gone(served.profile, before)


def test_with_pinned_requests_under_load_no_answer_is_wrong_and_no_client_hangs(stack: Stack) -> None:
    old = stack.record("decode-0")["handle"]["pid"]
    with RetryingClients(stack.profile.url, CLIENTS, seed=1) as clients:
        wait_until(lambda: clients.answered > CLIENTS, deadline_s=60, what="answers before the restart")
        stack.pin()
        result = stack.restart("--drain", "2", "--role-set", "decode:SGLANG_REQ_WAITING_TIMEOUT=77")
        ready, before = now(), clients.answered
        wait_until(lambda: clients.answered > before + CLIENTS, deadline_s=60, what="answers after the restart")
        seen = clients.stop()
    assert seen.wrong == ()
    assert seen.hung == ()
    # With 200 an error is an event of a stream that had begun.
    refused = {f"refused {status}" for status in (200, 500, 502, 503)}
    assert set(seen.fates) <= {"answered", "cut off", *refused}, seen.fates
    # Traffic flows at once when it says so: whoever asks after that is answered.
    assert {outcome.fate for outcome in seen.outcomes if outcome.sent_s > ready} == {"answered"}
    assert result["state"] == "restarted"
    assert result["downtime_s"] > 0
    facts = {step["id"]: step["facts"] for step in result["steps"]}
    assert facts["drain"]["drained"] is False
    left = [words for words in facts["drain"]["left"] if words.startswith("prefill-0: ")]
    assert ["inflight" in words for words in left] == [True], (left, facts)
    assert facts["abort"]["aborted"] > 0
    assert stack.record("decode-0")["handle"]["pid"] != old
    assert {(change["worker"], change["what"], change["after"]) for change in result["changes"]} == {
        ("decode-0", "SGLANG_REQ_WAITING_TIMEOUT", "77")
    }
    # What was set at the start is set still; what is set for one side is set for that side.
    assert stack.record("prefill-0")["env"]["SGLANG_LOG_MS"] == "1"
    assert "SGLANG_REQ_WAITING_TIMEOUT" not in stack.record("prefill-0")["env"]
    assert stack.status() == (0, set())
    assert stack.pending is None
    (folder,) = result["evidence"]
    kept = {path.name for path in (Path(folder) / "decode-0").iterdir()}
    assert {"metrics.txt", "env.txt", "argv.txt", "log.txt"} <= kept
    stacks = [path.read_text() for path in (Path(folder) / "decode-0").glob("stacks-*.txt")]
    assert any("event_loop_normal_disagg_decode" in text for text in stacks)


def test_after_kill_9_of_dsv4ctl_a_second_run_completes(stack: Stack) -> None:
    assert stack.cut_at("start:decode-0") == -signal.SIGKILL
    code, findings = stack.status()
    assert code == 1
    assert "CO_RESTART_UNFINISHED" in findings
    result = stack.restart()
    states = {done["id"]: done["state"] for done in result["steps"]}
    # What was started before it was cut off goes on.
    assert states["start:prefill-0"] == "already"
    assert states["gone:local"] == "already"
    assert stack.status() == (0, set())
    assert stack.pending is None
    assert stack.answers()


def test_a_configuration_that_does_not_come_up_is_rolled_back(stack: Stack) -> None:
    broken = ("--role-set", "decode:args.attention-backend=flashinfer")
    done = stack.dsv4.run("co-restart", "--yes", "-o", "json", *broken, stack.profile.path, timeout_s=300)
    assert done.code == 7, done.err
    document = done.document
    assert "flashinfer" in document["error"]["why"]
    assert document["result"]["state"] == "rolled back"
    # The log of the engine that did not come up is turned away by the next start.
    (failed,) = (stack.folder / "evidence").glob("*-failed")
    assert str(failed) in document["error"]["hint"]
    assert "flashinfer" in (failed / "decode-0" / "log.txt").read_text()
    assert "--attention-backend" in stack.record("decode-0")["argv"]
    assert "flashinfer" not in stack.record("decode-0")["argv"]
    assert stack.status() == (0, set())
    assert stack.answers()


def test_what_would_not_come_up_is_refused_before_anything_is_stopped(stack: Stack) -> None:
    old = stack.record("prefill-0")["handle"]
    refused = {
        "UCX_TLS=sm,self": 6,
        "SGLANG_DSV4_DISABLE_PATCHES=no-such-patch": 6,
        "SGLANG_MISSPELT=1": 2,
        "model.path=/no/such/model": 2,
        "prefill.args.page-size=16": 6,
        "name=another": 2,
        "supervisor=systemd": 2,
    }
    for setting, code in refused.items():
        more = ["--set", "decode.args.page-size=32"] if "page-size" in setting else []
        done = stack.dsv4.run("co-restart", "--yes", "--set", setting, *more, stack.profile.path)
        assert done.code == code, (setting, done.err)
    assert stack.record("prefill-0")["handle"] == old
    assert stack.pending is None
    assert stack.status() == (0, set())
