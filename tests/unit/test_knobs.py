"""Names of environment variables and flags: what the engine knows, and what we say of the ones it does not."""

# ruff: noqa: E501 - a sentence stays on its line

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot as expected

from dsv4ctl.errors import OperationFailed
from dsv4ctl.findings import Severity
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.knobs import (
    Registry,
    ask,
    lint,
    lint_on,
    parse_registry,
    snapshot,
    unread,
    wrong_flag,
    wrong_name,
    wrong_value,
)
from dsv4ctl.profile import LoadedProfile, ProfileError, load_profile
from dsv4ctl.profile.lookup import builtin_profiles
from serving import knobs as engine_knobs

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
VERSION = "0.5.23"
BUNDLED = ROOT / "dsv4ctl" / "data" / f"knobs-{VERSION}.json"


@pytest.fixture(scope="module")
def registry() -> Registry:
    known = snapshot(VERSION)
    assert known is not None
    return known


def load(ref: str, *sets: str) -> LoadedProfile:
    return load_profile(ref, environ={}, cwd=ROOT, sets=sets, profiles=builtin_profiles())


def test_the_bundled_snapshot_is_what_the_installed_engine_says() -> None:
    assert json.loads(BUNDLED.read_text()) == engine_knobs.dump(), (
        f"run: python -m serving knobs --json > dsv4ctl/data/{BUNDLED.name}"
    )


def test_asking_imports_neither_the_engine_nor_torch() -> None:
    code = (
        "import sys; from serving.__main__ import main; main(['knobs', '--json']);"
        "heavy = {'torch', 'sglang', 'triton', 'sglang_router'} & sys.modules.keys();"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=240)


_PARSER = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
kind = lambda action: "switch" if action.nargs == 0 else "value" if action.nargs is None else "list"
print(json.dumps({
    name.removeprefix("--"): [kind(action), getattr(action.type, "__name__", None),
                              action.choices and sorted(map(str, action.choices))]
    for action in parser._actions for name in action.option_strings
    if name.startswith("--") and name != "--help"
}))
"""


@pytest.mark.stack
@pytest.mark.beside
def test_engine_flags_are_those_of_the_real_parser(registry: Registry) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "serving" / "cpu" / "standins"), "SGLANG_USE_CPU_ENGINE": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", _PARSER], env=env, capture_output=True, text=True, check=True, timeout=200
    )
    real = json.loads(answer.stdout.splitlines()[-1])
    flags = registry.engine_flags
    assert {name: kind for name, (kind, _, _) in real.items()} == {name: flag.kind for name, flag in flags.items()}
    numbers = {name: type_ for name, (_, type_, _) in real.items() if type_ in ("int", "float")}
    assert numbers == {name: flag.type for name, flag in flags.items() if flag.type is not None}
    choices = {name: values for name, (_, _, values) in real.items() if values}
    ours = {name: sorted(flag.choices) for name, flag in flags.items() if flag.choices is not None}
    assert ours == {name: values for name, values in choices.items() if name in ours}
    # They are worked out when the parser is made.
    assert choices.keys() - ours.keys() == {
        *("sampling-backend", "reasoning-parser", "tool-call-parser", "kv-canary-real-data", "lora-target-modules"),
        *("cuda-graph-backend-decode", "cuda-graph-backend-prefill"),
    }


def test_router_flags_are_those_of_the_real_parser(registry: Registry) -> None:
    from sglang_router.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    names = {
        name.removeprefix("--") for action in parser._actions for name in action.option_strings if name[:2] == "--"
    }
    assert names - {"help"} == registry.router_flags.keys()


def test_ours_are_known_and_say_whether_they_are_read(registry: Registry) -> None:
    for name, own in engine_knobs.OWN_KNOBS.items():
        assert registry.env[name].origin == "dsv4"
        assert (registry.env[name].type, registry.env[name].default) == (own.type, own.default)
        assert registry.env[name].meaning


def test_none_of_ours_is_the_engines_own(registry: Registry) -> None:
    engines = engine_knobs._registry(engine_knobs._environ_module())
    assert engine_knobs.OWN_KNOBS.keys() & engines.keys() == set()
    for name in ("SGLANG_DSV4_REASONING_EFFORT", "SGLANG_DEFAULT_THINKING"):
        assert (registry.env[name].origin, registry.env[name].is_read) == ("registry", True)


def test_every_name_that_our_half_reads_is_in_the_table_or_the_engines(registry: Registry) -> None:
    assert engine_knobs.names_read_by_us() - registry.env.keys() == set()


def test_every_name_of_ours_that_is_read_is_known_and_documented() -> None:
    unknown = engine_knobs.names_read_by_us() - engine_knobs.dump()["env"].keys()
    assert unknown == set(), "each needs a line in serving/knobs.py"
    page = (ROOT / "docs" / "environment.md").read_text()
    for name, own in engine_knobs.OWN_KNOBS.items():
        default = f"`{own.default}`" if own.default else "empty"
        assert f"| `{name}` | {own.type} | {default} | {own.meaning} |" in page


NAMES: Mapping[str, tuple[str, str | None]] = {
    "known": ("SGLANG_USE_CPU_ENGINE", expected(None)),
    "a letter missing": (
        "SGLANG_USE_CPU_ENGIN",
        expected(
            "is not known to sglang 0.5.23 or to us, and would be silently ignored; did you mean SGLANG_USE_CPU_ENGINE?"
        ),
    ),
    "a word missing": (
        "SGLANG_DISAGGREGATION_BACKEND",
        expected(
            "is not known to sglang 0.5.23 or to us, and would be silently ignored; did you mean SGLANG_DISAGGREGATION_NIXL_BACKEND?"
        ),
    ),
    "lower case": (
        "sglang_use_cpu_engine",
        expected(
            "is not known to sglang 0.5.23 or to us, and would be silently ignored; did you mean SGLANG_USE_CPU_ENGINE?"
        ),
    ),
    "like nothing": (
        "SGLANG_QQQQQQQQQQQQQQ",
        expected(
            "is not known to sglang 0.5.23 or to us, and would be silently ignored; take it out, or see `python -m serving knobs`"
        ),
    ),
    "slip in the prefix": (
        "SLGANG_USE_CPU_ENGINE",
        expected("looks like a slip, and would be silently ignored; did you mean SGLANG_USE_CPU_ENGINE?"),
    ),
    "old prefix": ("SGL_USE_CPU_ENGINE", expected("is an old spelling; write SGLANG_USE_CPU_ENGINE")),
    "deprecated": (
        "SGLANG_ENABLE_CP_V2",
        expected(
            "is deprecated in sglang 0.5.23: Strategy-based prefill context parallelism is now the only generic implementation"
        ),
    ),
    "foreign": ("NCCL_DEBUG", expected(None)),
    "nobody's": ("MY_OWN_THING", expected(None)),
    "of an older engine": (
        "SGLANG_DSV4_MODE",
        expected(
            "is not known to sglang 0.5.23 or to us, and would be silently ignored; take it out, or see `python -m serving knobs`"
        ),
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_names(case: str, registry: Registry) -> None:
    name, said = NAMES[case]
    assert wrong_name(name, registry) == said


VALUES: Mapping[str, tuple[str, str, str | None]] = {
    "true": ("SGLANG_USE_MODELSCOPE", "Yes", expected(None)),
    "not a bool": (
        "SGLANG_USE_MODELSCOPE",
        "on",
        expected('must be true or false (1 or 0), not "on"; the engine would use its default (0)'),
    ),
    "not an int": (
        "SGLANG_SORT_WEIGHT_FILES",
        "1.5",
        expected('must be an integer, not "1.5"; the engine would use its default (0)'),
    ),
    "an int": ("SGLANG_SORT_WEIGHT_FILES", "-1", expected(None)),
    "not a number": (
        "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT",
        "60s",
        expected('must be a number, not "60s"; the engine would use its default (120)'),
    ),
    "a tuple": ("SGLANG_DISABLED_MODEL_ARCHS", "a,b", expected(None)),
    "untyped": ("SGLANG_USE_CPU_ENGINE", "maybe", expected(None)),
    "a level of NCCL": ("NCCL_P2P_LEVEL", "PHB", expected(None)),
    "an old level of NCCL": ("NCCL_P2P_LEVEL", "5", expected(None)),
    "no level of NCCL": (
        "NCCL_P2P_LEVEL",
        "PHBX",
        expected(
            'must be one of LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, DIS, not "PHBX", which NCCL would ignore'
        ),
    ),
    "a backend of NIXL": ("SGLANG_DISAGGREGATION_NIXL_BACKEND", "LIBFABRIC", expected(None)),
    "a slip in a backend of NIXL": (
        "SGLANG_DISAGGREGATION_NIXL_BACKEND",
        "UXC",
        expected('must be a backend of NIXL as NIXL writes it, not "UXC"; did you mean UCX?'),
    ),
    "lower case in a backend of NIXL": (
        "SGLANG_DISAGGREGATION_NIXL_BACKEND",
        "ucx",
        expected('must be a backend of NIXL as NIXL writes it, not "ucx"; did you mean UCX?'),
    ),
    "a backend of NIXL that we do not know": ("SGLANG_DISAGGREGATION_NIXL_BACKEND", "SOMETHING_NEW", expected(None)),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(case: str, registry: Registry) -> None:
    name, value, said = VALUES[case]
    assert wrong_value(name, value, registry) == said


FLAGS: Mapping[str, tuple[str, str | int | float | bool | tuple[int | str, ...], str | None]] = {
    "known": ("tp-size", 2, expected(None)),
    "underscores": ("tp_size", 2, expected("is not a flag of SGLang's server; did you mean tp-size?")),
    "a beginning": ("tp", 2, expected("is not a flag of SGLang's server; did you mean tp-size?")),
    "one beginning of several": (
        "cuda-graph-bs",
        (1, 2),
        expected("is not a flag of SGLang's server; did you mean cuda-graph-bs-decode or cuda-graph-bs-prefill?"),
    ),
    "a slip": (
        "chunked-prefil-size",
        2,
        expected("is not a flag of SGLang's server; did you mean chunked-prefill-size?"),
    ),
    "like nothing": ("qqqqqqqqqq", 2, expected("is not a flag of SGLang's server; take it out")),
    "switch with a value": ("enable-metrics", 1, expected("takes no value: write true, or false to leave it out")),
    "switch": ("enable-metrics", True, expected(None)),
    "value without one": ("tp-size", True, expected("takes a value, and true would leave it without one")),
    "left out": ("tp-size", False, expected(None)),
    "list for one": ("tp-size", (1, 2), expected("takes one value, not a list")),
    "list": ("cuda-graph-bs-decode", (1, 2), expected(None)),
    "negated switch": ("no-enable-tf32-matmul", True, expected(None)),
    "a choice": ("moe-runner-backend", "flashinfer_cutlass", expected(None)),
    "a slip in a choice": (
        "moe-runner-backend",
        "flashinfer_cutlas",
        expected('cannot be "flashinfer_cutlas"; did you mean "flashinfer_cutlass"?'),
    ),
    "a choice like none": (
        "kv-cache-dtype",
        "qqqqqqqqqq",
        expected(
            'cannot be "qqqqqqqqqq"; it takes auto, fp8_e5m2, fp8_e4m3, mxfp8, bf16, bfloat16, nvfp4, fp4_mx_block16'
        ),
    ),
    "a number for a choice": ("page-size", 64, expected(None)),
    "not an integer": ("tp-size", "four", expected('must be an integer, not "four"')),
    "a fraction for an integer": ("tp-size", 4.5, expected('must be an integer, not "4.5"')),
    "not a number": ("mem-fraction-static", "lots", expected('must be a number, not "lots"')),
    "a number that is no share": ("mem-fraction-static", 8.5, expected("must be between 0 and 1, not 8.5")),
    "a share": ("mem-fraction-static", 0.85, expected(None)),
    "a list of integers": ("cuda-graph-bs-decode", (1, "two"), expected('must be an integer, not "two"')),
}


@pytest.mark.parametrize("case", FLAGS)
def test_flags(case: str, registry: Registry) -> None:
    name, value, said = FLAGS[case]
    assert wrong_flag(name, value, registry.engine_flags, "SGLang's server") == said


def test_a_host_of_an_older_version_says_less_of_its_flags(registry: Registry) -> None:
    data = json.loads(BUNDLED.read_text())
    flags = {name: {"kind": flag["kind"]} for name, flag in data["engine_flags"].items()}
    older = parse_registry(json.dumps({**data, "engine_flags": flags}), "an older one")
    assert wrong_flag("kv-cache-dtype", "fp9", older.engine_flags, "SGLang's server") is None
    assert wrong_flag("kv-cache-dtyp", "fp9", older.engine_flags, "SGLang's server") is not None


def test_the_values_of_the_routers_flags_are_checked_too(registry: Registry) -> None:
    problems = lint(load("cpu", "router.args.policy=best"), {"local": registry})
    assert [str(problem) for problem in problems] == expected(
        ['--set: router.args.policy cannot be "best"; it takes random, round_robin, cache_aware, power_of_two, manual']
    )


@pytest.mark.parametrize("name", builtin_profiles())
def test_a_built_in_profile_has_only_known_names(name: str, registry: Registry) -> None:
    assert lint(load(name), {"local": registry}) == ()


def test_one_mistake_is_told_once_with_its_place(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("""\
extends = "cpu"
[env]
SGLANG_LOG_MSS = 1
[decode.args]
max-runing-requests = 4
[router.args]
polcy = "random"
""")
    loaded = load_profile("./p.toml", environ={}, cwd=tmp_path, sets=["prefill-0.SGLANG_LOG_MS=perhaps"])
    assert [str(problem) for problem in lint(loaded, {"local": registry})] == expected(
        [
            "p.toml:3: env.SGLANG_LOG_MSS is not known to sglang 0.5.23 or to us, and would be silently ignored; did you mean SGLANG_LOG_MS?",
            '--set: prefill-0.SGLANG_LOG_MS must be true or false (1 or 0), not "perhaps"; the engine would use its default (0)',
            "p.toml:5: decode.args.max-runing-requests is not a flag of SGLang's server; did you mean max-running-requests?",
            "p.toml:7: router.args.polcy is not a flag of the router; did you mean policy?",
        ]
    )


UNREAD = ("SGLANG_DSV4_BF16_INDEX_K=1", "decode.SGLANG_SM120_MMA_TARGET_CTAS=512", "SGLANG_DSV4_IDXK_CKSUM=0")


def without_kernels(registry: Registry) -> Registry:
    """The registry of a version whose half of the engine reads none of these, whatever this one does."""
    names = [item.rpartition(".")[2].partition("=")[0] for item in UNREAD]
    return replace(
        registry, env={**registry.env, **{name: replace(registry.env[name], is_read=False) for name in names}}
    )


def test_a_knob_that_nothing_reads_is_told_and_is_no_error(registry: Registry) -> None:
    registries = {"local": without_kernels(registry)}
    loaded = load("cpu", *UNREAD)
    assert lint(loaded, registries) == ()
    (finding,) = unread(loaded, registries)
    assert (finding.code, finding.severity) == ("KNOB_NOT_READ", Severity.WARNING)
    assert finding.message == expected(
        "SGLANG_DSV4_BF16_INDEX_K, SGLANG_SM120_MMA_TARGET_CTAS are set for prefill-0, decode-0 on local, and nothing reads them there (the bundled snapshot of sglang 0.5.23)"
    )
    assert unread(load("cpu", *UNREAD[2:]), registries) == ()


def test_its_value_is_checked_all_the_same(registry: Registry) -> None:
    problems = lint(load("cpu", "SGLANG_DSV4_BF16_INDEX_K=perhaps"), {"local": without_kernels(registry)})
    assert [str(problem) for problem in problems] == expected(
        [
            '--set: SGLANG_DSV4_BF16_INDEX_K must be true or false (1 or 0), not "perhaps"; the engine would use its default (0)'
        ]
    )


def test_a_knob_that_is_read_is_not_told_of(registry: Registry) -> None:
    read = {name: replace(knob, is_read=True) for name, knob in registry.env.items()}
    assert unread(load("cpu", *UNREAD), {"local": replace(registry, env=read)}) == ()


def test_secret_values_are_not_repeated(registry: Registry) -> None:
    knob = next(knob for knob in registry.env.values() if knob.type == "int")
    secret = Registry("here", VERSION, {"SGLANG_API_TOKEN": knob}, {}, {})
    said = wrong_value("SGLANG_API_TOKEN", "hush", secret)
    assert said is not None
    assert "hush" not in said


def test_the_engine_of_the_host_is_asked() -> None:
    host = LocalHost()
    asked = ask(host, sys.executable)
    bundled = snapshot(VERSION)
    assert bundled is not None
    assert (asked.version, asked.env, asked.engine_flags) == (VERSION, bundled.env, bundled.engine_flags)
    assert asked.source == f"{sys.executable} on local"


def test_without_an_engine_the_snapshot_is_used_and_said(tmp_path: Path) -> None:
    linted = lint_on(load("cpu", "SGLANG_LOG_MSS=1"), {"local": LocalHost()}, {"local": str(tmp_path / "python")})
    assert linted.sources == {"local": "the bundled snapshot of sglang 0.5.23"}
    assert len(linted.notes) == 1
    with pytest.raises(ProfileError, match="did you mean SGLANG_LOG_MS"):
        linted.raise_problems()


def test_without_a_snapshot_nothing_is_claimed() -> None:
    linted = lint_on(load("cpu", 'engine.version="0.1.0"', "SGLANG_LOG_MSS=1"), {}, {})
    assert (linted.problems, linted.sources) == ((), {})
    assert linted.notes == ("names for local were not checked: there is no snapshot of sglang 0.1.0",)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": 1}', '{"schema_version": 2}'])
def test_what_is_no_registry_is_refused(text: str) -> None:
    with pytest.raises(OperationFailed, match="python on box"):
        parse_registry(text, "python on box")
