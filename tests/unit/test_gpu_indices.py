"""A GPU index that has become another card is found before anything is started, and nothing else is taken for that."""

import json
import os
import random
import socket
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4ctl.app import app
from dsv4ctl.facts import GpuFact
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.fleet import Place, open_fleet, open_place
from dsv4ctl.gpu_indices import IndexMemory, check_indices
from dsv4ctl.hosts.connect import open_host
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.journal import utc_now
from dsv4ctl.preflight import gpus_changed
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.serve import ServeContext, Serving
from dsv4ctl.signals import interruptible
from dsv4ctl.stack import Worker, build_stack
from tests.cards import card_box


def gpu(index: int, bus: str, uuid: str | None = None) -> GpuFact:
    return GpuFact(index, f"00000000:{bus}:00.0", 97_887, f"GPU-{bus}" if uuid is None else uuid, 0, {0: 10})


THEN = tuple(gpu(index, bus) for index, bus in enumerate(("01", "11", "21", "31")))
# The third card has fallen off the bus, and what came behind it moved up.
LATER = tuple(gpu(index, bus) for index, bus in enumerate(("01", "11", "31")))


def worker(name: str, gpus: tuple[int | str, ...], cards: tuple[GpuFact, ...]) -> Worker:
    return Worker(name, "prefill", "local", name, ("python",), {}, "127.0.0.1", 1, {"http": 1}, None, gpus, cards)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return open_place("local", LocalHost(), "process", "/opt/python", str(tmp_path / "state"))


def found(place: Place, gpus: tuple[int | str, ...], there: tuple[GpuFact, ...]) -> tuple[Finding, ...]:
    memory = IndexMemory(place, "pair")
    cards = tuple(card for card in there if card.index in gpus)
    with closing(place.host):
        return check_indices("local", [worker("prefill-0", gpus, cards)], there, memory)


def remember(place: Place, gpus: tuple[int | str, ...], there: tuple[GpuFact, ...] = THEN) -> None:
    cards = tuple(card for card in there if card.index in gpus)
    IndexMemory(place, "pair").remember([worker("prefill-0", gpus, cards)])


def test_before_the_first_start_nothing_is_claimed(place: Place) -> None:
    assert found(place, (0, 1, 2), THEN) == ()


def test_an_index_that_is_another_card_is_refused_with_both_names(place: Place) -> None:
    remember(place, (0, 1, 2))
    (finding,) = found(place, (0, 1, 2), LATER)
    path = IndexMemory(place, "pair").path
    assert (finding.code, finding.severity) == ("GPU_INDEX_MOVED", Severity.ERROR)
    assert "2 was 0000:21:00.0 (GPU-21) and is 0000:31:00.0 (GPU-31)" in finding.message
    assert "0 was" not in finding.message
    assert '"0000:21:00.0"' in finding.remedy
    assert finding.remedy.endswith(f"rm {path}")
    assert finding.evidence == {
        "host": "local",
        "path": path,
        "indices": "2",
        "were": "0000:21:00.0",
        "are": "0000:31:00.0",
    }


def test_the_new_meaning_is_accepted_by_forgetting_the_old(place: Place) -> None:
    remember(place, (2,))
    assert found(place, (2,), LATER)
    Path(IndexMemory(place, "pair").path).unlink()
    assert found(place, (2,), LATER) == ()


def test_an_index_that_the_profile_does_not_use_is_nobodys_business(place: Place) -> None:
    remember(place, (0, 1, 2))
    assert found(place, (0, 1), LATER) == ()
    assert found(place, ("0000:31:00.0",), LATER) == ()


def test_another_card_in_the_same_slot_and_the_same_card_under_another_number_are_no_move(place: Place) -> None:
    remember(place, (2, 3))
    now = (gpu(2, "21", "GPU-new"), gpu(3, "41", "GPU-31"))
    assert found(place, (2, 3), now) == ()


def test_without_the_cards_own_names_the_place_decides(place: Place) -> None:
    remember(place, (2,), (gpu(2, "21", ""),))
    assert found(place, (2,), (gpu(2, "21", ""),)) == ()
    assert found(place, (2,), (gpu(2, "31", ""),))


def test_other_indices_stay_remembered(place: Place) -> None:
    remember(place, (0, 1))
    remember(place, (2,))
    remember(place, ("0000:31:00.0",))
    assert sorted(IndexMemory(place, "pair").load()) == [0, 1, 2]


def test_each_stack_remembers_for_itself(place: Place) -> None:
    remember(place, (2,))
    assert IndexMemory(place, "other").load() == {}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "cards": {}}', '{"version": 1, "cards": {"a": {}}}'])
def test_what_cannot_be_read_is_unknown_and_no_reason_to_refuse(text: str, place: Place) -> None:
    remember(place, (2,))
    Path(IndexMemory(place, "pair").path).write_text(text)
    (finding,) = found(place, (2,), THEN)
    assert finding.severity is Severity.UNKNOWN
    remember(place, (2,))
    assert found(place, (2,), THEN) == ()


def test_gpus_that_change_between_two_looks_end_it() -> None:
    same = worker("prefill-0", (2,), (THEN[2],))
    assert gpus_changed("box", [same], THEN) is None
    changed = gpus_changed("box", [same], LATER)
    assert changed == "GPU 2 on box was 00000000:21:00.0 when the plan was made, and is 00000000:31:00.0 now"
    unseen = Worker(
        "prefill-0", "prefill", "box", "u", (), {}, "127.0.0.1", 1, {}, None, (2,), (), ("2 does not exist",)
    )
    assert "could not be looked at" in str(gpus_changed("box", [unseen], THEN))


PROFILE = """\
schema_version = 1
name = "indexed"
description = "A server that would end at once"
[engine]
version = "0.5.23"
module = "json.tool"
[model]
path = "{model}"
served_name = "m"
[[unified.workers]]
port = {port}
gpus = [0, 2]
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile that names GPUs by index, on a machine with a driver that knows four."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    path = tmp_path / "indexed.toml"
    path.write_text(PROFILE.format(model=tmp_path / "model", port=free_port()))
    box = card_box(tmp_path / "box", dict.fromkeys(("01", "11", "21", "31"), 0))
    monkeypatch.setenv("PATH", f"{box.root}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_a_proven_start_remembers_what_its_indices_mean(profile: Path) -> None:
    loaded = load_profile(str(profile), environ={}, cwd=Path.cwd())
    with open_fleet(loaded.profile, open_host) as fleet, interruptible() as interrupts:
        stack = build_stack(loaded, {name: place.site for name, place in fleet.items()})
        context = ServeContext(
            stack, loaded.profile.canary, fleet, interrupts, random.Random(0), lambda views: None, utc_now, "indexed"
        )
        serving = Serving(context)
        with serving.watch:
            serving.note_ready()
        memory = IndexMemory(fleet["local"], stack.name).load()
        record = fleet["local"].store.load(stack.name)
    assert {index: card.uuid for index, card in memory.items()} == {0: "GPU-01", 2: "GPU-21"}
    assert record is not None
    assert [(card.index, card.pci_bus_id) for card in record.workers[0].cards] == [
        (0, "0000:01:00.0"),
        (2, "0000:21:00.0"),
    ]


def test_serve_starts_nothing_when_an_index_has_moved(profile: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "dsv4ctl" / "stacks" / "indexed"
    folder.mkdir(parents=True)
    card = {"pci_bus_id": "0000:41:00.0", "uuid": "GPU-41"}
    (folder / "gpu-indices.json").write_text(json.dumps({"version": 1, "cards": {"2": card}}))
    result = CliRunner().invoke(app, ["serve", str(profile), "-o", "json"])
    document = json.loads(result.stdout)
    assert (result.exit_code, document["error"]["exit_code"]) == (6, 6)
    # The driver that is recorded here answers nothing else that is asked of it.
    codes = {finding["code"] for finding in document["findings"] if finding["severity"] == "error"}
    assert codes == {"GPU_INDEX_MOVED", "DRIVER_FAILS"}
    assert "2 was 0000:41:00.0 (GPU-41) and is 0000:21:00.0 (GPU-21)" in str(document["findings"])
    assert not (folder / "stack.json").exists()
