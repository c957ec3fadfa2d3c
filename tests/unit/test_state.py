"""Records survive a round trip, keep no secrets, and are refused when they are not ours."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4ctl.errors import CannotLook
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.stack import Worker
from dsv4ctl.state import RESTART_FILES, StackRecord, StateStore, planned
from dsv4ctl.supervisors.base import UnitHandle

WORKER = Worker(
    name="prefill-0",
    role="prefill",
    host="local",
    unit="dsv4-x-prefill-0",
    argv=("python", "-m", "sglang.launch_server", "--api-key", "hunter2"),
    env={"HF_TOKEN": "hunter3", "OMP_NUM_THREADS": "1"},
    listen="127.0.0.1",
    port=30100,
    ports={"http": 30100, "bootstrap": 8998},
)
HANDLE = UnitHandle("process", "dsv4-x-prefill-0", 4711, 12345, "boot")
RECORD = StackRecord(
    stack="x",
    profile="x.toml",
    supervisor="process",
    started_at="2026-11-29T12:00:00+00:00",
    entry_url="http://127.0.0.1:30000",
    served_model="tiny",
    ready=False,
    workers=(planned(WORKER),),
    shm=("/dev/shm/a",),
)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(LocalHost(), str(tmp_path))


def test_a_record_comes_back_as_it_was(store: StateStore) -> None:
    record = RECORD.with_handle("prefill-0", HANDLE)
    store.save(record)
    assert store.load("x") == record
    assert store.stacks() == ("x",)


def test_no_secret_is_written(store: StateStore, tmp_path: Path) -> None:
    store.save(RECORD)
    assert "hunter" not in (tmp_path / "stacks" / "x" / "stack.json").read_text()


def test_no_record_is_none_and_forgetting_twice_is_harmless(store: StateStore) -> None:
    assert store.load("x") is None
    store.save(RECORD)
    store.delete("x")
    store.delete("x")
    assert store.load("x") is None
    assert store.stacks() == ()


@pytest.mark.parametrize("unit", ["../../etc", "a/b", "", ".hidden", "x" * 300])
def test_a_record_with_a_unit_that_is_a_path_is_refused(store: StateStore, tmp_path: Path, unit: str) -> None:
    store.save(RECORD)
    path = tmp_path / "stacks" / "x" / "stack.json"
    path.write_text(path.read_text().replace("dsv4-x-prefill-0", unit))
    with pytest.raises(CannotLook, match="not a record of ours"):
        store.load("x")


def test_a_record_that_speaks_of_another_stack_or_unit_is_refused(store: StateStore, tmp_path: Path) -> None:
    store.save(RECORD.with_handle("prefill-0", HANDLE))
    path = tmp_path / "stacks" / "x" / "stack.json"
    whole = path.read_text()
    for lie in (whole.replace('"stack": "x"', '"stack": "../../y"'), whole.replace('"dsv4-x-prefill-0"', '"z"', 1)):
        assert lie != whole
        path.write_text(lie)
        with pytest.raises(CannotLook, match="not a record of ours"):
            store.load("x")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1, "workers": [1]}'])
def test_something_else_in_its_place_is_named_and_not_taken_for_nothing(
    store: StateStore, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "stacks" / "x" / "stack.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(CannotLook, match=r"stack\.json on local is not a record of ours"):
        store.load("x")


def test_a_handle_goes_to_its_worker_alone() -> None:
    two = replace(RECORD, workers=(planned(WORKER), replace(planned(WORKER), name="decode-0")))
    changed = two.with_handle("decode-0", HANDLE)
    assert [worker.handle for worker in changed.workers] == [None, HANDLE]


def test_a_stack_that_is_forgotten_leaves_no_restart_and_no_secret_of_one(store: StateStore, tmp_path: Path) -> None:
    store.save(RECORD)
    folder = tmp_path / "stacks" / "x"
    for name in RESTART_FILES:
        (folder / name).write_text("{}")
    (folder / "journal").mkdir()
    store.delete("x")
    assert [path.name for path in folder.iterdir()] == ["journal"]


def test_a_record_that_was_written_before_cards_were_recorded_is_read(store: StateStore) -> None:
    store.save(RECORD)
    path = Path(store.directory("x")) / "stack.json"
    body = json.loads(path.read_text())
    for worker in body["workers"]:
        del worker["cards"]
    path.write_text(json.dumps(body))
    assert store.load("x") == RECORD
