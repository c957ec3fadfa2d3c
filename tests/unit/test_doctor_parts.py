"""What `dsv4ctl doctor` says of software, model and timers, from what was read of them."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.doctor.engines import engine_findings, of_version
from dsv4ctl.doctor.model import Config, model_findings, parse_config
from dsv4ctl.doctor.pd_fixes import FIXES, NEWEST, lacking, parsed
from dsv4ctl.doctor.timer_order import timer_findings
from dsv4ctl.doctor.versions import version_findings
from dsv4ctl.facts import HostFacts
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.knobs import snapshot
from dsv4ctl.profile.loading import LoadedProfile, load_profile
from dsv4ctl.restart.patch_table import Table
from dsv4ctl.stack import Site, Stack, build_stack
from tests.cards import EIGHT_CARDS

FACTS = HostFacts((0, 1), (), None, None, True, True, {"sglang": "0.5.23"}, True, True, None)
SITE = Site("/opt/engine/bin/python", "/var/lib/dsv4ctl", "/home/o", "/tmp/d", EIGHT_CARDS)
NEEDED = (
    *("inflight-watchdog", "lost-decode", "lost-prefill", "sticky-status", "lost-messages", "settled-pages"),
    *("peer-reconnect", "absent-prefill", "decode-quarantine"),
)
PATCHED: Table = dict.fromkeys(NEEDED, "applied")


def loaded(*sets: str) -> LoadedProfile:
    return load_profile("rtx-pro-6000-8x", environ={}, cwd=Path("/"), sets=sets)


def stack(*sets: str) -> Stack:
    return build_stack(loaded(*sets), {"local": SITE})


def codes(findings: tuple[Finding, ...] | list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def test_a_later_version_lacks_nothing_that_an_earlier_one_has() -> None:
    versions = [f"0.5.{minor}" for minor in range(14, 24)]
    missing = [{fix.what for fix in lacking(version) or ()} for version in versions]
    assert all(later <= earlier for earlier, later in itertools.pairwise(missing))
    assert all(fix.patch for fix in FIXES if not fix.there(NEWEST))


@pytest.mark.parametrize("version", ["0.5.13", "0.6.0", "0.5.23.dev1", "", "main"])
def test_of_a_version_that_nobody_looked_at_nothing_is_known(version: str) -> None:
    assert lacking(version) is None


def test_a_post_release_counts_as_its_release() -> None:
    assert parsed("0.5.15.post1") == (0, 5, 15)


@pytest.mark.parametrize(
    ("version", "table", "expected"),
    [
        ("0.5.23", PATCHED, []),
        ("0.5.23", {}, ["PD_FIX_MISSING"] * 3 + ["ONE_SIDE_UNSAFE"] * 2),
        ("0.5.22", PATCHED, ["ONE_SIDE_UNSAFE"] * 2),
        ("0.5.15", {}, ["PD_FIX_MISSING"] * len(FIXES) + ["ONE_SIDE_UNSAFE"] * 2),
        ("0.6.1", PATCHED, ["PD_FIX_MISSING"]),
    ],
)
def test_what_a_version_lacks_is_told_unless_a_patch_does_it(
    version: str, table: Mapping[str, str], expected: list[str]
) -> None:
    assert codes(of_version("box", version, {"prefill": table, "decode": table})) == expected


def test_a_stack_that_is_not_apart_lacks_nothing_of_it() -> None:
    assert of_version("box", "0.5.15", {"unified": {}}) == []


def test_packages_are_compared_with_what_the_profile_was_tested_with() -> None:
    profile = loaded('engine.tested={torch = "2.14.1", nixl = "1.5.1"}').profile
    facts = replace(FACTS, packages={"sglang": "0.5.23", "torch": "2.14.1+cu130", "nixl": "1.3.0"})
    (finding,) = version_findings(profile, {"local": facts})
    assert (finding.code, finding.evidence["package"]) == ("VERSION_DIFFERS", "nixl")
    assert [finding.evidence["package"] for finding in version_findings(profile, {"local": FACTS})] == ["torch", "nixl"]


def test_ucx_and_driver_are_compared_and_unknown_where_they_do_not_tell() -> None:
    profile = loaded('engine.tested={driver = "590.48", ucx = "1.23.0"}').profile
    facts = replace(FACTS, packages={"sglang": "0.5.23", "driver": "590.48.01", "ucx": "1.20.0"})
    (finding,) = version_findings(profile, {"local": facts})
    assert finding.severity is Severity.WARNING
    assert finding.message == "local has UCX 1.20.0, and the profile was tested with 1.23.0"
    mute = replace(
        FACTS, unseen={"driver": "nvidia-smi: no answer within 10 s"}, packages={**FACTS.packages, "ucx": "1.23.0"}
    )
    (finding,) = version_findings(profile, {"local": mute})
    assert finding.severity is Severity.UNKNOWN
    assert finding.message == "local does not tell its version of NVIDIA driver: nvidia-smi: no answer within 10 s"
    without = [finding.message for finding in version_findings(profile, {"local": FACTS})]
    assert without[0] == "local has no NVIDIA driver, and the profile was tested with 590.48"


def config(host: str = "local", digest: str = "a", length: int | None = 1048576) -> Config:
    return Config(host, "/models/m/config.json", digest, length, "bfloat16", "modelopt_fp4")


def test_a_model_that_fits_is_well() -> None:
    facts = {"local": replace(FACTS, gpus=EIGHT_CARDS)}
    assert model_findings(stack(), [config()], facts, 170 * 1024**3) == ()


def test_weights_that_take_the_share_of_a_gpu_leave_no_room_for_kv() -> None:
    facts = {"local": replace(FACTS, gpus=EIGHT_CARDS)}
    share = 0.8 * 97887 * 1024**2 * 4
    for part, severity in ((0.95, Severity.WARNING), (1.05, Severity.ERROR)):
        sets = ("args.mem-fraction-static=0.8",)
        found = model_findings(stack(*sets), [config()], facts, int(share * part))
        assert {(finding.code, finding.severity) for finding in found} == {("MODEL_LEAVES_NO_KV", severity)}


def test_a_context_longer_than_the_models_is_refused_unless_it_is_allowed() -> None:
    sets = ("args.context-length=400000",)
    found = model_findings(stack(*sets), [config(length=131072)], {"local": FACTS}, None)
    assert codes(found) == ["CONTEXT_TOO_LONG"] * 2
    allowed = stack(*sets, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1")
    assert model_findings(allowed, [config(length=131072)], {"local": FACTS}, None) == ()


def test_two_hosts_must_have_the_same_model_and_one_that_cannot_be_read_is_unknown() -> None:
    found = model_findings(stack(), [config(), config("other", "b"), "m on third cannot be read"], {}, None)
    assert [(finding.code, finding.severity) for finding in found] == [
        ("MODEL_UNREAD", Severity.UNKNOWN),
        ("MODEL_DIFFERS", Severity.ERROR),
    ]


def test_the_configuration_of_a_model_is_read_where_models_have_it() -> None:
    text = {"model_type": "deepseek_v4", "text_config": {"max_position_embeddings": 9}, "torch_dtype": "bfloat16"}
    read = parse_config("h", "p", json.dumps(text))
    assert (read.length, read.dtype, read.quantization) == (9, "bfloat16", None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["text_config", "max_position_embeddings", "quantization_config", "torch_dtype", "quant_method"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON)
def test_whatever_a_configuration_holds_it_is_read_or_refused(document: object) -> None:
    if isinstance(document, dict):
        document["model_type"] = "deepseek_v4"
    try:
        parse_config("h", "p", json.dumps(document))
    except ValueError:
        assert not isinstance(document, dict)


def test_a_configuration_that_names_no_model_is_none() -> None:
    with pytest.raises(ValueError, match="neither architectures nor model_type"):
        parse_config("h", "p", "{}")
    assert parse_config("h", "p", '{"architectures": ["DeepseekV4ForCausalLM"]}').length is None


def test_a_model_without_weights_is_told_unless_none_are_loaded() -> None:
    facts = {"local": replace(FACTS, model_bytes=0)}
    (finding,) = model_findings(stack(), [config()], facts, None)
    assert (finding.code, finding.severity) == ("MODEL_UNREAD", Severity.UNKNOWN)
    assert "/models/DeepSeek-V4-Flash-NVFP4 on local has no weights" in finding.message
    assert model_findings(stack("args.load-format=dummy"), [config()], facts, None) == ()
    # Nothing is said of the weights of a model that is not there, or whose files were not counted.
    for other in (replace(FACTS, model_directory=False, model_bytes=0), FACTS):
        assert model_findings(stack(), [config()], {"local": other}, None) == ()


def test_timers_of_a_plan_that_stand_wrong_are_findings_and_a_slip_is_unknown() -> None:
    assert timer_findings(stack().workers) == []
    (finding,) = timer_findings(stack("SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT=5").workers)
    assert (finding.code, finding.severity) == ("TIMERS_OUT_OF_ORDER", Severity.WARNING)
    (finding,) = timer_findings(stack("SGLANG_DISAGGREGATION_WAITING_TIMEOUT=soon").workers)
    assert finding.severity is Severity.UNKNOWN


def test_what_nothing_reads_and_what_the_engine_would_refuse_is_told() -> None:
    known = snapshot(".".join(map(str, NEWEST)))
    assert known is not None
    idle = [name for name, knob in known.env.items() if not knob.is_read and knob.type == "bool"]
    profile = loaded(*(f"{name}=1" for name in idle), "args.kv-cache-dtype=fp9", "args.mem-fraction-static=lots")
    found = engine_findings(profile, {}, build_stack(profile, {"local": SITE}), {})
    unread = [finding for finding in found if finding.code == "KNOB_NOT_READ"]
    assert [name for name in idle if name not in str(unread)] == []
    refused = [finding.message for finding in found if finding.code == "KNOB_UNREAD"]
    assert len([message for message in refused if "kv-cache-dtype" in message or "mem-fraction-static" in message]) == 2
