"""Known-bad settings are found when all of them hold, whether set or by default, and not otherwise."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving import knobs
from serving.hazards import FLAGS, HAZARDS, Engine, arguments_of, misread, present, sentence
from serving.settings import BadSetting

ROOT = Path(__file__).parents[2]

NIXL = ("--model-path", "m", "--disaggregation-transfer-backend", "nixl")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"}
INDEX_KEYS = {"SGLANG_DSV4_BF16_INDEX_K": "1"}
CPU = {"SGLANG_USE_CPU_ENGINE": "1"}

FOUND: Mapping[str, tuple[dict[str, str], tuple[str, ...], list[str]]] = {
    "nothing set": ({}, (), []),
    "an ordinary engine of a pair": ({"UCX_TLS": "tcp,cuda_copy,cuda_ipc,sm,self"}, NIXL, []),
    "index keys, overlap set": (
        {**INDEX_KEYS, "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"},
        (),
        ["bf16-index-keys-multi-stream"],
    ),
    "index keys, overlap by default": ({"SGLANG_DSV4_BF16_INDEX_K": "True"}, (), ["bf16-index-keys-multi-stream"]),
    "index keys on a CPU": ({**INDEX_KEYS, **CPU}, (), ["bf16-index-keys-multi-stream"]),
    "index keys, overlap off": ({**INDEX_KEYS, "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "false"}, (), []),
    "overlap without index keys": (
        {"SGLANG_DSV4_BF16_INDEX_K": "0", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"},
        (),
        [],
    ),
    "UCX without a way to see a peer fail": ({"UCX_TLS": "self, sm"}, NIXL, ["ucx-without-failure-handling"]),
    "the same with an equals sign": (
        {"UCX_TLS": "cuda_copy,cuda_ipc,sm"},
        ("--disaggregation-transfer-backend=nixl",),
        ["ucx-without-failure-handling"],
    ),
    "the same without NIXL": ({"UCX_TLS": "self,sm"}, ("--disaggregation-transfer-backend", "mooncake"), []),
    "the same over another backend of NIXL": (
        {"UCX_TLS": "self,sm", "SGLANG_DISAGGREGATION_NIXL_BACKEND": "LIBFABRIC"},
        NIXL,
        [],
    ),
    "UCX with RDMA": ({"UCX_TLS": "sm,rc_x,cuda_copy"}, NIXL, []),
    "UCX with all but one": ({"UCX_TLS": "^tcp"}, NIXL, []),
    "decode that frees at once": (
        {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"},
        ("--disaggregation-mode", "decode"),
        ["decode-frees-at-once"],
    ),
    "the same in other words": (
        {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "No"},
        ("--disaggregation-mode=decode",),
        ["decode-frees-at-once"],
    ),
    "the same on prefill": (
        {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"},
        ("--disaggregation-mode", "prefill"),
        ["decode-frees-at-once"],
    ),
    "the same without disaggregation": (
        {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "0"},
        (),
        [],
    ),
    "decode as it is by default": ({}, ("--disaggregation-mode", "decode"), []),
    "expandable segments, UCX free to choose": (EXPANDABLE, NIXL, ["expandable-segments-cuda-ipc"]),
    "the same by the new name": (
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "UCX_TLS": "tcp,cuda_ipc"},
        NIXL,
        ["expandable-segments-cuda-ipc"],
    ),
    "the same without cuda_ipc": ({**EXPANDABLE, "UCX_TLS": "^cuda_ipc"}, NIXL, []),
    "the same over TCP alone": ({**EXPANDABLE, "UCX_TLS": "tcp"}, NIXL, []),
    "expandable segments on a CPU": ({**EXPANDABLE, **CPU}, NIXL, []),
    "expandable segments said to be off": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, NIXL, []),
    "legacy all-reduce": (
        {**EXPANDABLE, "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"},
        (),
        ["expandable-segments-legacy-all-reduce"],
    ),
    "legacy all-reduce, turned off": (
        {**EXPANDABLE, "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"},
        ("--disable-custom-all-reduce",),
        [],
    ),
    "no P2P in NCCL": ({"NCCL_P2P_DISABLE": "1"}, (), ["nccl-p2p-off-custom-all-reduce"]),
    "no P2P anywhere": ({"NCCL_P2P_DISABLE": "1"}, ("--disable-custom-all-reduce",), []),
    "P2P in NCCL, which takes nothing but 1": ({"NCCL_P2P_DISABLE": "true"}, (), []),
    "an empty graph file": ({"NCCL_GRAPH_FILE": ""}, (), ["nccl-graph-file-empty"]),
    "a graph file": ({"NCCL_GRAPH_FILE": "/etc/graph.xml"}, (), []),
}


@pytest.mark.parametrize("case", FOUND)
def test_present(case: str) -> None:
    environment, arguments, names = FOUND[case]
    assert [hazard.name for hazard in present(Engine(environment, arguments))] == names


@pytest.mark.parametrize("said", ["", "off", "on", " 1", "2", "1", "TRUE", "y", None])
def test_what_sglang_does_not_understand_counts_as_its_default(said: str | None) -> None:
    """Only SGLang's own words for no switch the overlap off; everything else leaves it on, as it is by default."""
    environment = {**INDEX_KEYS} if said is None else {**INDEX_KEYS, "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": said}
    (hazard,) = present(Engine(environment))
    assert hazard.name == "bf16-index-keys-multi-stream"
    note = f"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP is {said!r}, for which SGLang takes the default, on"
    is_misread = said in ("", "off", "on", " 1", "2")
    assert misread(Engine(environment)) == ((note,) if is_misread else ())
    assert (f"({note})" in sentence(hazard, Engine(environment))) == is_misread
    assert misread(Engine(environment), [hazard]) == ()


@pytest.mark.parametrize("said", ["", "off", "disabled"])
def test_a_word_that_sglang_does_not_understand_switches_nothing_off(said: str) -> None:
    engine = Engine({"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": said}, ("--disaggregation-mode", "decode"))
    assert present(engine) == ()
    assert [note.partition(" is ")[0] for note in misread(engine)] == [
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    ]


@pytest.mark.parametrize("said", ["on", "yes", "Y"])
def test_a_switch_of_ours_is_read_as_ours_is_everywhere(said: str) -> None:
    assert [hazard.name for hazard in present(Engine({"SGLANG_DSV4_BF16_INDEX_K": said}))] == [
        "bf16-index-keys-multi-stream"
    ]


def test_a_switch_of_ours_that_means_nothing_is_refused() -> None:
    with pytest.raises(BadSetting, match="SGLANG_DSV4_BF16_INDEX_K is 'perhaps'"):
        present(Engine({"SGLANG_DSV4_BF16_INDEX_K": "perhaps"}))


FLAG = "--disaggregation-mode"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((), None),
        ((FLAG, "decode"), "decode"),
        ((f"{FLAG}=decode",), "decode"),
        (("--disaggregation-mod", "decode"), "decode"),
        (("--disaggregation-m=decode",), "decode"),
        ((FLAG, "prefill", FLAG, "decode"), "decode"),
        ((f"{FLAG}=prefill", "--disaggregation-m", "decode", "--port", "1"), "decode"),
        ((FLAG,), ""),
        ((FLAG, "--port", "1"), ""),
        ((f"{FLAG}s", "decode"), None),
        (("--model-path", "decode"), None),
        (("--",), None),
        (("-", "decode"), None),
    ],
)
def test_a_flag_is_read_as_argparse_reads_it(arguments: tuple[str, ...], value: str | None) -> None:
    assert Engine({}, arguments).flag(FLAG) == value


def test_a_flag_cut_short_is_no_other_flag_of_the_engine() -> None:
    """So what could be one of these, cut short, is nothing else that SGLang would take."""
    engine_flags = {f"--{name}" for name in knobs.dump()["engine_flags"]}
    assert set(FLAGS) <= engine_flags
    assert [flag for flag in engine_flags for asked in FLAGS if asked != flag and asked.startswith(flag)] == []


def test_what_an_engine_starts_with_is_as_good_as_its_command_line() -> None:
    """Wherever it has it from: a file, a program, or a decision of its own."""
    settled = SimpleNamespace(
        disaggregation_mode="decode", disaggregation_transfer_backend="nixl", disable_custom_all_reduce=True
    )
    engine = Engine({}, arguments_of(settled))
    assert [engine.flag(flag) for flag in FLAGS] == ["decode", "nixl", ""]
    plain = SimpleNamespace(
        disaggregation_mode="null", disaggregation_transfer_backend="mooncake", disable_custom_all_reduce=False
    )
    assert [Engine({}, arguments_of(plain)).flag(flag) for flag in FLAGS] == ["null", "mooncake", None]


def test_every_hazard_can_be_found() -> None:
    assert {name for _, _, names in FOUND.values() for name in names} == {hazard.name for hazard in HAZARDS}


def test_what_the_defaults_of_the_installed_engine_are() -> None:
    """The table says of these in words what they are; another default would make the words wrong."""
    defaults = {
        name: knobs.engine_default(name)
        for name in (
            "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP",
            "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
            "SGLANG_DISAGGREGATION_NIXL_BACKEND",
        )
    }
    assert list(defaults.values()) == ["1", "1", "UCX"]


def test_the_page_has_every_hazard_in_the_words_of_the_table() -> None:
    page = " ".join((ROOT / "docs" / "hazards.md").read_text().split())
    for hazard in HAZARDS:
        settings = "; ".join(setting.text for setting in hazard.settings)
        assert f"| {hazard.name} | {hazard.severity} | {settings} | {hazard.effect} | {hazard.remedy} |" in page
        assert f"**{hazard.name}**: {hazard.evidence}" in page


def test_naming_a_variable_in_the_table_is_not_reading_it() -> None:
    assert "SGLANG_DSV4_BF16_INDEX_K" not in knobs.names_read_by_us()


def asked(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving", "hazards", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_table_is_printed_for_a_program() -> None:
    answer = asked("--json", "--", *NIXL, UCX_TLS="self,sm")
    data = json.loads(answer.stdout)
    assert (answer.returncode, data["schema_version"]) == (1, 1)
    assert [entry["name"] for entry in data["hazards"]] == [hazard.name for hazard in HAZARDS]
    assert [entry["name"] for entry in data["hazards"] if entry["present"]] == ["ucx-without-failure-handling"]
    assert all(entry["evidence"] and entry["settings"] for entry in data["hazards"])


def test_a_person_sees_those_that_are_set() -> None:
    answer = asked(NCCL_GRAPH_FILE="")
    engine = Engine({"NCCL_GRAPH_FILE": ""})
    (hazard,) = present(engine)
    assert (answer.returncode, answer.stdout) == (0, f"warn  nccl-graph-file-empty  {sentence(hazard, engine)}\n")
    assert asked().stdout == f"none of the {len(HAZARDS)} known hazards is set here\n"


def test_what_is_not_understood_is_said_also_where_it_does_no_harm() -> None:
    note = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2 is 'off', for which SGLang takes the default, on"
    environment = {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "off"}
    assert asked(**environment).stdout.splitlines()[1:] == [f"note  {note}"]
    assert json.loads(asked("--json", **environment).stdout)["misread"] == [note]
