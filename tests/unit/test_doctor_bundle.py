"""`dsv4ctl doctor --bundle`: what is in it, what must not be, and the file that it becomes."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4ctl.doctor.bundle.archive import Bundle, Member, check_path, write
from dsv4ctl.doctor.bundle.collect import Subject, collect
from dsv4ctl.errors import HostUnreachable, Interrupted, OperationFailed, UsageError
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.fleet import Place, open_place
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, build_stack
from dsv4ctl.state import StackRecord, planned
from dsv4ctl.supervisors.base import UnitSpec
from dsv4ctl.waiting import wait_until
from tests.unit.test_scrubbing import SECRETS, is_in, writings

MADE_AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
FINDING = Finding("HAZARD", Severity.WARNING, "a sentence", "a remedy", {"gpu": 3})


def members_of(bundle: Bundle) -> dict[str, bytes]:
    return {member.name: member.data for member in bundle.members}


def subject_of(directory: Path, toml: str = "") -> Subject:
    """The cpu profile with some more, and no host."""
    file = directory / "mine.toml"
    file.write_text(f'extends = "cpu"\nname = "mine"\n{toml}', encoding="utf-8")
    loaded = load_profile(str(file), environ={}, cwd=directory)
    stack = build_stack(loaded, {"local": Site(sys.executable, str(directory), str(directory), str(directory))})
    return Subject(loaded.profile.name, {}, stack, loaded)


@given(
    secret=SECRETS.filter(lambda text: "\n" not in text),
    place=st.sampled_from(
        ["env.HF_TOKEN", "prefill.env.MY_PASSWD", "env.MY_CREDENTIALS", "args.api-key", "decode.args.admin-api-key"]
    ),
    form=st.integers(0, 4),
)
@settings(max_examples=40)
def test_no_secret_of_a_profile_is_in_any_member(secret: str, place: str, form: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table, _, key = place.rpartition(".")
        value = json.dumps(secret, ensure_ascii=False)
        subject = subject_of(Path(directory), f"[{table}]\n{key} = {value}\n")
        finding = replace(FINDING, message=f"drift: {secret}", evidence={"running": secret})
        log = f"server_args=ServerArgs(api_key={writings(secret)[form]})".encode()
        bundle = collect(subject, [finding], more={"log.txt": log}, environ={}, now=lambda: MADE_AT)
    assert {"profile.toml", "planned/prefill-0.json", "findings.json", "log.txt"} <= members_of(bundle).keys()
    for member in bundle.members:
        assert not is_in(secret, member.data), member.name


def test_a_secret_of_any_ordinary_shape_is_hidden_in_all_members_alike(tmp_path: Path) -> None:
    variables = {
        "DATABASE_URL": "postgres://bob:hunter-one@db/x",
        "HTTP_PROXY": "http://u:hunter-two@proxy",
        "MY_PWD": "hunter-three",
        "MY_CREDENTIALS": "hunter-four",
        "PASSPHRASE": "hunter-five",
        "MY_PASSWD": "hunter-six",
        "NOTE": "see https://hunter-seven-of-nine@git/x",
    }
    toml = "[env]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in variables.items())
    toml += '[router.args]\ncontrol-plane-api-keys = ["a:b:admin:hunter-eight"]\n'
    log = b"connecting as hunter-one, then hunter-six; git at https://deploy:hunter-nine@git failed\n"
    found = members_of(collect(subject_of(tmp_path, toml), [], more={"log.txt": log}, environ={}))
    assert not [name for name, data in found.items() if b"hunter" in data]
    for name in ("profile.toml", "profile-origins.json", "planned/prefill-0.json"):
        text = found[name].decode()
        assert "postgres://bob:<redacted sha256:" in text
        assert all(variable in text for variable in variables)


def test_our_own_secrets_are_taken_out_too(tmp_path: Path) -> None:
    ours = {"GITHUB_TOKEN": "tr0ub4dor-and-3"}
    bundle = collect(subject_of(tmp_path), [], more={"log.txt": b"x tr0ub4dor-and-3"}, environ=ours)
    assert b"tr0ub4dor" not in members_of(bundle)["log.txt"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with closing(LocalHost()) as host:
        yield open_place("local", host, "process", sys.executable, str(tmp_path / "state"))


def test_a_running_worker_its_host_and_its_journals_are_in_it_and_what_is_not_says_so(
    place: Place, tmp_path: Path
) -> None:
    subject = subject_of(tmp_path)
    assert subject.stack is not None
    prefill, decode, _ = subject.stack.workers
    env = {**prefill.env, "HF_TOKEN": "hunter2hunter2", "SPT_NOENV": "1"}
    argv = ("sh", "-c", 'echo "starting with $HF_TOKEN"; sleep 60; :', "sh", "--api-key", "letmein-letmein")
    handle = place.supervisor.start(UnitSpec(prefill.unit, argv, env))
    try:
        log = tmp_path / "state/logs" / f"{prefill.unit}.log"
        wait_until(lambda: "starting" in log.read_text(), deadline_s=10, what="its first line")
        workers = (planned(replace(prefill, argv=argv, env=env), handle), planned(decode))
        place.store.save(StackRecord("mine", "mine.toml", "process", "", "", "tiny", ready=True, workers=workers))
        record = place.store.load("mine")
        assert record is not None
        for number in range(12):
            name = f"{place.store.journal_directory('mine')}/2026{number:02}-serve.jsonl"
            place.host.write(name, b'{"event": "start", "token": "hunter2hunter2"}\n')
        subject = replace(subject, fleet={"local": place}, records=(("local", record),), stack=None)
        found = members_of(collect(subject, [FINDING], environ={}))
    finally:
        place.supervisor.kill(handle)
    assert b"starting with <redacted sha256:" in found["hosts/local/prefill-0/log.txt"]
    assert b"HF_TOKEN=<redacted" in found["hosts/local/prefill-0/env.txt"]
    assert b"--api-key\n<redacted" in found["hosts/local/prefill-0/argv.txt"]
    assert not [name for name, data in found.items() if b"hunter2" in data or b"letmein" in data]
    assert json.loads(found["findings.json"])[0]["code"] == "HAZARD"
    assert json.loads(found["hosts/local/stack.json"])["stack"] == "mine"
    journals = sorted(name for name in found if "/journals/" in name)
    assert [Path(name).name for name in journals] == [f"2026{number:02}-serve.jsonl" for number in range(2, 12)]
    assert b"pytest==" in found["hosts/local/packages.txt"]
    assert found["hosts/local/kernel-command-line.txt"] == Path("/proc/cmdline").read_bytes()
    # It answers no HTTP, and decode was never started.
    assert b"could not be had" in found["hosts/local/prefill-0/metrics.txt.missing.txt"]
    assert b"does not run" in found["hosts/local/decode-0/running.missing.txt"]
    assert all(name in found["about.txt"].decode() for name in found if name != "about.txt")


class Gone(LocalHost):
    """A host that answers nothing any more."""

    def run(self, *_: Any, **__: Any) -> Any:
        raise HostUnreachable("box-b is gone")

    def read(self, *_: Any, **__: Any) -> Any:
        raise HostUnreachable("box-b is gone")


def test_a_host_that_is_gone_is_said_and_stops_nothing(place: Place, tmp_path: Path) -> None:
    subject = subject_of(tmp_path)
    gone = replace(place, host=Gone())
    subject = replace(subject, fleet={"local": gone}, unreachable=(("box-c", "no route to box-c"),))
    bundle = collect(subject, [FINDING], environ={})
    missing = {member.name: member.missing for member in bundle.missing}
    assert missing["hosts/local/everything.missing.txt"].endswith("box-b is gone")
    assert missing["hosts/box-c/everything.missing.txt"].endswith("no route to box-c")
    assert missing["hosts/local/prefill-0/patches.json.missing.txt"].endswith("box-b is gone")
    assert "findings.json" in members_of(bundle)


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    ticks = iter([0.0, *[1000.0] * 100])
    bundle = collect(subject_of(tmp_path), [FINDING], environ={}, clock=lambda: next(ticks))
    assert {member.name for member in bundle.members} >= {"profile.toml.missing.txt", "findings.json.missing.txt"}
    assert all("no time left" in member.missing for member in bundle.missing)


def interrupted_at(call: int) -> Callable[[], None]:
    """A check that says at its `call`-th call, and ever after, that the person wants to end."""
    calls = itertools.count(1)

    def check() -> None:
        if next(calls) >= call:
            raise Interrupted("interrupted (SIGINT)")

    return check


@pytest.mark.parametrize("call", [1, 3, 9])
def test_gathering_ends_when_the_person_wants_to(call: int, place: Place, tmp_path: Path) -> None:
    subject = replace(subject_of(tmp_path), fleet={"local": place})
    with pytest.raises(Interrupted):
        collect(subject, [FINDING], environ={}, check=interrupted_at(call))


BUNDLE = Bundle("dsv4-bundle-x", MADE_AT, (Member("about.txt", b"about"), Member("hosts/a/log.txt", b"line\n" * 9999)))


def opened(path: Path) -> tarfile.TarFile:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
        return tarfile.open(fileobj=io.BytesIO(data), mode="r:")
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:gz")


@pytest.mark.parametrize("suffix", [".tar.zst", ".tar.gz"])
def test_the_file_has_all_members_and_is_its_owners_alone(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"
    size = write(BUNDLE, path)
    assert size == path.stat().st_size < 9999
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with opened(path) as tar:
        assert tar.getnames() == ["dsv4-bundle-x/about.txt", "dsv4-bundle-x/hosts/a/log.txt"]
        content = tar.extractfile("dsv4-bundle-x/hosts/a/log.txt")
        assert content is not None
        assert content.read() == b"line\n" * 9999
    assert list(BUNDLE.rows()) == [("about.txt", 5, ""), ("hosts/a/log.txt", 49995, "")]


def test_nothing_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write(BUNDLE, path)
    link = tmp_path / "link.tar.gz"
    link.symlink_to("nowhere")
    with pytest.raises(UsageError, match="is there already"):
        check_path(link)
    assert path.read_text() == "mine"


def test_a_file_that_somebody_makes_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.tar.gz"
    link = os.link

    def made_first(source: str, target: Path) -> None:
        path.write_text("theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", made_first)
    with pytest.raises(UsageError, match="is there already"):
        write(BUNDLE, path)
    assert (path.read_text(), [entry.name for entry in tmp_path.iterdir()]) == ("theirs", [path.name])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_part_of_a_file_stays(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(OperationFailed if isinstance(error, OSError) else KeyboardInterrupt):
        write(BUNDLE, tmp_path / "report.tar.zst")
    assert list(tmp_path.iterdir()) == []


def test_no_part_of_a_file_stays_where_the_person_ends_it(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        write(BUNDLE, tmp_path / "report.tar.zst", check=interrupted_at(2))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_it_is_gathered_ends_doctor_and_shows_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    (tmp_path / "tmp").mkdir()
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp")}
    words = ["doctor", "cpu", "--only", "TIMERS_OUT_OF_ORDER", "--bundle", str(path), "-o", "json"]
    with subprocess.Popen(
        [sys.executable, "-c", "from dsv4ctl.app import main; main()", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as doctor:
        assert doctor.stderr is not None
        for line in doctor.stderr:
            if line.startswith("asking local"):
                doctor.send_signal(signal.SIGINT)
                break
        out, errors = doctor.communicate(timeout=90)
    assert doctor.returncode == 130, errors
    answer = json.loads(out)
    assert (answer["error"]["exit_code"], answer["result"]["stack"], answer["result"]["bundle"]) == (130, "cpu", None)
    assert not path.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", ["report.zip", "report.tar", "no/such/report.tar.gz"])
def test_a_path_that_cannot_be_is_refused_before_anything_is_gathered(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        check_path(tmp_path / name)


def test_without_zstandard_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError) as raised:
        check_path(tmp_path / "report.tar.zst")
    assert raised.value.hint == "pip install zstandard, or let the name end in .tar.gz"
    check_path(tmp_path / "report.tar.gz")
