"""Every command on a running stack, through Typer's runner: what it prints for people and for programs."""

import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dsv4ctl.app import app
from tests.engine import Dsv4, StackProfile

pytestmark = pytest.mark.stack


@pytest.fixture
def runner(dsv4: Dsv4, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("XDG_STATE_HOME", str(dsv4.state))
    return CliRunner()


def envelope(text: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(text)
    assert body["schema_version"] == 1
    return body


def test_a_chat_is_answered_through_router_prefill_and_decode(shared: StackProfile) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{shared.url}/v1/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["message"]["content"].startswith("I am the tiny model of dsv4ctl")


def test_status_finds_every_worker_as_planned(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["status", str(shared.path), "-o", "json"])
    assert done.exit_code == 0, done.output
    body = envelope(done.stdout)
    assert body["findings"] == []
    assert [worker["name"] for worker in body["result"]["workers"]] == ["prefill-0", "decode-0", "router"]
    assert all(worker["answers"] for worker in body["result"]["workers"])
    assert body["result"]["drifts"] == {"prefill-0": [], "decode-0": [], "router": []}


def test_status_tells_of_secrets_that_a_co_restart_left(runner: CliRunner, dsv4: Dsv4, shared: StackProfile) -> None:
    left = dsv4.state / "dsv4ctl" / "stacks" / shared.name / "before.json"
    assert (left.parent / "stack.json").is_file()
    left.write_text("{}")
    try:
        done = runner.invoke(app, ["status", str(shared.path), "-o", "json"])
    finally:
        left.unlink()
    assert done.exit_code == 0, done.output
    (finding,) = envelope(done.stdout)["findings"]
    assert (finding["code"], finding["evidence"]["path"]) == ("SECRETS_LEFT", str(left))


def test_status_for_people_is_one_aligned_table(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["status", str(shared.path)])
    assert done.exit_code == 0
    title, header, *rows = done.stdout.splitlines()
    assert "proved itself" in title
    assert header.split() == ["worker", "host", "pid", "state", "age", "address", "as", "planned"]
    assert {row.index("local") for row in rows} == {header.index("host")}


def test_the_doctor_finds_nothing_wrong_with_a_stack_that_runs_and_asks_it_for_answers(
    runner: CliRunner, shared: StackProfile
) -> None:
    result = runner.invoke(app, ["doctor", str(shared.path), "-o", "json"])
    body = json.loads(result.stdout)
    errors = [finding for finding in body["findings"] if finding["severity"] == "error"]
    assert not errors, errors
    assert result.exit_code in {0, 4}
    assert body["result"]["runs"]
    assert body["result"]["generations"] == {"asked": 4, "right": 4}
    assert {"generations", "the installation", "what runs", "host local"} <= body["result"]["seconds"].keys()


def test_a_deep_look_at_a_stack_that_runs_moves_data_and_keeps_what_a_report_needs(
    runner: CliRunner, shared: StackProfile, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    command = ["doctor", str(shared.path), "--deep", "--only", "TRANSFER_FAILED", "--bundle", str(bundle), "--yes"]
    result = runner.invoke(app, [*command, "-o", "json"])
    body = json.loads(result.stdout)
    assert (result.exit_code, body["findings"]) == (0, []), body
    # Only that part was looked at.
    assert body["result"]["seconds"] == {}
    (transfer,) = body["result"]["deep"]["transfers"]
    assert transfer["problems"] == []
    (pair,) = transfer["pairs"]
    assert pair["lane"]
    assert set(pair["gb_per_s_by_size_bytes"]) == {"4096", "65536", "1048576", "16777216", "268435456"}
    assert all(speed > 0 for speed in pair["gb_per_s_by_size_bytes"].values())
    with tarfile.open(bundle) as kept:
        names = {name.partition("/")[2] for name in kept.getnames()}
    seen = {"log.txt", "metrics.txt", "loads.json", "patches.json", "env.txt"}
    assert names >= {"findings.json", "deep.json", *(f"hosts/local/prefill-0/{name}" for name in seen)}


def test_serving_again_is_refused_and_names_what_runs(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["serve", "--detach", str(shared.path), "-o", "json"])
    assert done.exit_code == 6
    assert "runs already on local: prefill-0 (pid" in envelope(done.stdout)["error"]["what"]


def test_logs_of_one_worker_are_its_own_lines(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["logs", "prefill-0", "-n", "5", "-p", str(shared.path)])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5
    assert "prefill-0 |" not in done.stdout


def test_logs_of_a_role_that_is_not_there(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["logs", "encode", "-p", str(shared.path)])
    assert done.exit_code == 2
    assert "there are: prefill, prefill-0, decode, decode-0, router" in done.stderr


def test_logs_of_several_workers_name_the_worker(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["logs", "-n", "2", "-p", str(shared.path), "-o", "json"])
    lines = envelope(done.stdout)["result"]
    assert {line["worker"] for line in lines} >= {"prefill-0", "decode-0"}


def test_the_only_stack_of_a_state_directory_needs_no_name(
    runner: CliRunner, shared: StackProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["status", "-o", "json"])
    assert done.exit_code in {0, 2}
    if done.exit_code == 2:
        assert "several stacks are recorded on this host" in envelope(done.stdout)["error"]["what"]


def test_stop_without_a_terminal_needs_yes(runner: CliRunner, shared: StackProfile) -> None:
    done = runner.invoke(app, ["stop", str(shared.path)])
    assert done.exit_code == 2
    assert "add --yes" in done.stderr


def test_a_dry_run_prints_the_commands_and_writes_nothing(
    runner: CliRunner, shared: StackProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "untouched"))
    done = runner.invoke(app, ["serve", "--dry-run", str(shared.path)])
    assert done.exit_code == 0
    assert "--disaggregation-mode prefill" in done.stdout
    assert not (tmp_path / "untouched").exists()
    again = runner.invoke(app, ["serve", "--dry-run", str(shared.path), "-o", "json"])
    assert envelope(again.stdout)["result"]["applied"] is False
