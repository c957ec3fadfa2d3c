"""Which cards a worker gets: by index, by bus id, as the nearest to a node; and what is said when that cannot be told."""

# ruff: noqa: E501 - a sentence stays on its line

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from dsv4ctl.facts import GpuFact, read_facts, read_gpus
from dsv4ctl.profile.gpus import Asked, Chosen, choose, kernel_id, shown
from dsv4ctl.profile.keys import ProfileError
from dsv4ctl.profile.loading import LoadedProfile, load_profile
from dsv4ctl.serve_plan import plan_as_data, script_of, serve_plan, unresolved
from dsv4ctl.stack import Site, Stack, build_stack
from dsv4ctl.state import planned
from tests.cards import TWO_SOCKETS, card_box

BUSES = tuple(TWO_SOCKETS)


def card(index: int, bus: str, node: int | None, *, nodes: int = 2) -> GpuFact:
    distances = {} if node is None else {other: 10 if other == node else 32 for other in range(nodes)}
    return GpuFact(index, f"00000000:{bus.upper()}:00.0", 97_887, f"GPU-{bus}", node, distances)


BOX = tuple(card(index, bus, node) for index, (bus, node) in enumerate(TWO_SOCKETS.items()))


def indices(chosen: Chosen[GpuFact], worker: str) -> list[int]:
    return [one.index for (name, _), cards in sorted(chosen.cards.items()) for one in cards if name == worker]


def ask(*gpus: tuple[int | str, ...], there: tuple[GpuFact, ...] = BOX) -> Chosen[GpuFact]:
    return choose("box", [Asked(f"w{number}", items) for number, items in enumerate(gpus)], there)


def why(chosen: Chosen[GpuFact]) -> list[str]:
    return [f"{item.worker}[{item.position}] {item.gpu} {item.why}" for item in chosen.missing]


def test_each_node_has_its_own_four() -> None:
    chosen = ask(("4 nearest to node 0",), ("4 nearest to node 1",))
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert chosen.missing == ()


def test_the_order_of_the_driver_does_not_matter() -> None:
    mixed = tuple(card(7 - index, bus, node) for index, (bus, node) in enumerate(TWO_SOCKETS.items()))
    chosen = ask(("4 nearest to node 0",), ("4 nearest to node 1",), there=mixed)
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([7, 6, 5, 4], [3, 2, 1, 0])


def test_what_is_named_is_given_to_nobody_else() -> None:
    chosen = ask(("3 nearest to node 0",), (0, "0000:81:00.0", "2 nearest to node 1"))
    assert indices(chosen, "w0") == [1, 2, 3]
    assert indices(chosen, "w1") == [0, 4, 5, 6]


def test_a_card_goes_to_the_node_that_it_is_on_before_it_goes_to_another() -> None:
    three_and_five = tuple(card(index, bus, 0 if index < 3 else 1) for index, bus in enumerate(BUSES))
    chosen = ask(("4 nearest to node 0",), ("4 nearest to node 1",), there=three_and_five)
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([0, 1, 2, 7], [3, 4, 5, 6])


def test_two_of_one_node_share_it_in_the_order_of_the_profile() -> None:
    chosen = ask(("2 nearest to node 0",), ("2 nearest to node 0",))
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([0, 1], [2, 3])


def test_a_node_of_the_same_socket_is_nearer_than_the_other_socket() -> None:
    rows = ("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10")
    there = []
    for index, (bus, node) in enumerate(zip(BUSES, (2, 3, 0, 1, 2, 3, 0, 1), strict=True)):
        distances = {other: int(row.split()[node]) for other, row in enumerate(rows)}
        there.append(GpuFact(index, f"0000:{bus}:00.0", 1, "", node, distances))
    chosen = ask(("4 nearest to node 0",), ("4 nearest to node 2",), there=tuple(there))
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([2, 3, 6, 7], [0, 1, 4, 5])


def test_what_cannot_be_told_is_said() -> None:
    lost = (*BOX[:3], card(3, "31", None), *BOX[4:])
    assert why(ask(("4 nearest to node 0",), (4,), there=lost)) == snapshot(
        [
            "w0[0] 4 nearest to node 0 cannot be told: host box does not know on which NUMA node GPU 3 (0000:31:00.0) is; name the cards by bus id"
        ]
    )
    assert why(ask(("4 nearest to node 0",), ("5 nearest to node 1",))) == snapshot(
        [
            "w1[0] 5 nearest to node 1 takes 5 GPUs, and on host box 4 are left for it; its GPUs: 0 (00000000:01:00.0), 1 (00000000:11:00.0), 2 (00000000:21:00.0), 3 (00000000:31:00.0), 4 (00000000:81:00.0), 5 (00000000:91:00.0), 6 (00000000:A1:00.0), 7 (00000000:B1:00.0)"
        ]
    )
    assert why(ask(("1 nearest to node 7",), there=BOX[:1])) == snapshot(
        [
            "w0[0] 1 nearest to node 7 cannot be told: host box says of GPU 0 (0000:01:00.0) only how far it is from NUMA node 0, 1"
        ]
    )
    assert why(ask((9, "1 nearest to node 0"), there=())) == snapshot(
        [
            "w0[0] 9 does not exist on host box; its GPUs: none",
            "w0[1] 1 nearest to node 0 finds none: no GPU answers on host box",
        ]
    )


def test_a_node_that_is_not_there_is_no_matter_for_the_others() -> None:
    chosen = ask(("4 nearest to node 0",), ("4 nearest to node 2",))
    assert indices(chosen, "w0") == [0, 1, 2, 3]
    assert [item.worker for item in chosen.missing] == ["w1"]


def test_a_card_whose_node_is_unknown_is_no_matter_where_it_is_named() -> None:
    lost = (*BOX[:3], card(3, "31", None), *BOX[4:])
    chosen = ask(("0000:31:00.0",), ("3 nearest to node 0",), there=lost)
    assert (indices(chosen, "w0"), indices(chosen, "w1")) == ([3], [0, 1, 2])


@given(
    st.lists(st.sampled_from([0, 1]), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 1])), max_size=4),
    st.randoms(),
)
def test_no_card_is_given_twice_and_the_answer_is_always_the_same(
    nodes: list[int], asked: list[tuple[int, int]], chance: object
) -> None:
    there = tuple(card(index, BUSES[index], node) for index, node in enumerate(nodes))
    gpus = [(f"{count} nearest to node {node}",) for count, node in asked]
    chosen = ask(*gpus, there=there)
    given_away = [one.index for cards in chosen.cards.values() for one in cards]
    assert len(given_away) == len(set(given_away))
    shuffled = list(there)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ask(*gpus, there=tuple(shuffled)).cards == chosen.cards
    assert bool(chosen.missing) == (sum(count for count, _ in asked) > len(there))


def test_the_box_is_read_from_the_driver_and_the_kernel(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    with closing(box.host()) as host:
        gpus = read_gpus(host, root=box.root)
        facts = read_facts(host, state_root="/", model_path="", python="/none", root=box.root)
    assert gpus == facts.gpus == BOX
    assert facts.numa_nodes == (0, 1)
    assert shown(gpus[6]) == "6 (0000:a1:00.0, node 1)"


def test_a_node_that_the_kernel_does_not_know_is_unknown_unless_there_is_one_alone(tmp_path: Path) -> None:
    unknown = dict.fromkeys(BUSES[:2], -1)
    two = card_box(tmp_path / "two", unknown)
    one = card_box(tmp_path / "one", unknown, {0: "10"})
    with closing(two.host()) as host:
        assert [gpu.numa_node for gpu in read_gpus(host, root=two.root)] == [None, None]
    with closing(one.host()) as host:
        gpus = read_gpus(host, root=one.root)
    assert indices(ask(("2 nearest to node 0",), there=gpus), "w0") == [0, 1]


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    box = card_box(tmp_path, driver=False)
    with closing(box.host()) as host:
        assert read_gpus(host, root=box.root) == ()


PAIR = """\
schema_version = 1
name = "pair"
description = "One pair"
[engine]
version = "0.5.23"
[model]
path = "/models/m"
served_name = "m"
[router]
port = 30000
[[prefill.workers]]
port = 30100
bootstrap_port = 8998
gpus = PREFILL
[[decode.workers]]
port = 30200
gpus = DECODE
"""


def load(tmp_path: Path, prefill: str, decode: str) -> LoadedProfile:
    (tmp_path / "p.toml").write_text(PAIR.replace("PREFILL", prefill).replace("DECODE", decode))
    return load_profile("./p.toml", environ={}, cwd=tmp_path)


def stack_of(loaded: LoadedProfile, gpus: tuple[GpuFact, ...]) -> Stack:
    return build_stack(loaded, {"local": Site("/opt/python", "/state", "/home/op", "/tmp/op", gpus)})


@pytest.mark.parametrize(
    "wrong",
    [
        '"four nearest to node 0"',
        '"0 nearest to node 0"',
        '"4 nearest to node -1"',
        '"4  nearest to node 0"',
        '"4 Nearest to node 0"',
        '["4 nearest to node 01"]',
        "[true]",
        "4",
    ],
)
def test_another_way_to_say_it_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"prefill.workers\[0\].gpus"):
        load(tmp_path, wrong, "[4]")


def test_a_selector_reaches_the_environment_the_plan_and_the_record(tmp_path: Path) -> None:
    stack = stack_of(load(tmp_path, '"2 nearest to node 1"', '["0000:81:00.0", 0]'), BOX)
    prefill, decode, _ = stack.workers
    assert prefill.env["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert prefill.gpus == ("0000:91:00.0", "0000:a1:00.0")
    assert decode.env["CUDA_VISIBLE_DEVICES"] == "4,0"
    assert "# GPUs 5 (0000:91:00.0, node 1), 6 (0000:a1:00.0, node 1)\nenv" in script_of(stack)
    assert [record.pci_bus_id for record in planned(decode).cards] == ["0000:81:00.0", "0000:01:00.0"]
    workers = plan_as_data(stack, serve_plan(stack, load(tmp_path, "[1]", "[2]").profile.canary))["workers"]
    assert workers[0]["cards"] == planned(prefill).cards  # type: ignore[index]
    assert unresolved(stack) == ()


def test_one_card_under_two_names_is_told_with_the_plan(tmp_path: Path) -> None:
    stack = stack_of(load(tmp_path, '["0000:01:00.0", 0, 1]', '["11:00.0", 5]'), BOX)
    assert unresolved(stack) == snapshot(
        (
            "prefill-0: GPU 0 (0000:01:00.0, node 0) on local is named twice",
            "decode-0: GPU 1 (0000:11:00.0, node 0) on local is named by prefill-0 as well",
        )
    )
    assert unresolved(stack_of(load(tmp_path, '["0000:01:00.0", 1]', "[0, 5]"), BOX)) == snapshot(
        ("decode-0: GPU 0 (0000:01:00.0, node 0) on local is named by prefill-0 as well",)
    )


def test_a_plan_can_be_looked_at_where_there_is_no_gpu(tmp_path: Path) -> None:
    stack = stack_of(load(tmp_path, '"2 nearest to node 1"', '["0000:81:00.0", 0]'), ())
    assert [worker.env.get("CUDA_VISIBLE_DEVICES") for worker in stack.engines] == [
        "2 nearest to node 1",
        "0000:81:00.0,0",
    ]
    assert unresolved(stack) == snapshot(
        (
            "prefill-0: 2 nearest to node 1 finds none: no GPU answers on host local",
            "decode-0: 0000:81:00.0 does not exist on host local; its GPUs: none",
            "decode-0: 0 does not exist on host local; its GPUs: none",
        )
    )


def test_gpus_that_could_not_be_looked_at_are_not_said_to_be_missing(tmp_path: Path) -> None:
    unseen = "nvidia-smi: no answer within 1.5 s"
    loaded = load(tmp_path, '"2 nearest to node 1"', "[4]")
    stack = build_stack(loaded, {"local": Site("/opt/python", "/state", "/home/op", "/tmp/op", (), unseen)})
    assert unresolved(stack) == snapshot(
        (
            "prefill-0: 2 nearest to node 1 cannot be looked for on host local: nvidia-smi: no answer within 1.5 s",
            "decode-0: 4 cannot be looked for on host local: nvidia-smi: no answer within 1.5 s",
        )
    )
    box = card_box(tmp_path / "box")
    with closing(box.host()) as host:
        facts = read_facts(host, state_root="/", model_path="", python="/none", root=box.root)
    assert loaded.host_problems("local", replace(facts, gpus=(), gpus_unseen=unseen)) == ()


def test_a_host_that_cannot_give_them_is_told_before_a_start(tmp_path: Path) -> None:
    box = card_box(tmp_path, dict.fromkeys(BUSES, -1))
    with closing(box.host()) as host:
        facts = read_facts(host, state_root="/", model_path="", python="/none", root=box.root)
    loaded = load(tmp_path, '"2 nearest to node 1"', "[4]")
    assert [str(problem) for problem in loaded.host_problems("local", facts)] == snapshot(
        [
            "p.toml:14: prefill.workers[0].gpus[0] 2 nearest to node 1 cannot be told: host local does not know on which NUMA node GPU 0 (0000:01:00.0) is; name the cards by bus id"
        ]
    )


def test_a_bus_id_is_shown_as_the_kernel_writes_it() -> None:
    assert [kernel_id(text) for text in ("00000000:A1:00.0", "a1:00.0", "0001:A1:00.0")] == [
        "0000:a1:00.0",
        "0000:a1:00.0",
        "0001:a1:00.0",
    ]
