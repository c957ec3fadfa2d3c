"""The plugin never lets an engine run without what it needs: in real processes, with SGLang's own registry of hooks."""

# ruff: noqa: E501 - a sentence stays on its line

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from dsv4ctl.loglines import digest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
STANDINS = str(ROOT / "serving" / "cpu" / "standins")
REGISTER = "import sys, serving.plugin as p; p.register()"
AS_SGLANG_DOES = "from sglang.srt.plugins import load_plugins; load_plugins(); print('served')"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def sentence(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a process ended, which is also what the readers of its log take for its error."""
    (said,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (1, "")
    error = digest(ended.stderr).first_error
    assert error is not None
    assert error.message == said
    return said


@pytest.fixture
def other_version(tmp_path: Path) -> dict[str, str]:
    """An environment in which the installed SGLang says that it is a version that no patch is made for."""
    metadata = tmp_path / "sglang-0.5.99.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return {"PYTHONPATH": f"{tmp_path}:{STANDINS}"}


def test_a_function_that_is_not_there_ends_the_engine_with_one_sentence() -> None:
    code = "from serving import plugin; plugin._after('sglang.version.no_such_function', print)"
    ended = python(code, SGLANG_USE_CPU_ENGINE="1")
    assert ended.returncode == 1
    message = ended.stderr.strip().splitlines()[-1]
    assert message.startswith("dsv4: sglang.version.no_such_function cannot be hooked")
    assert "0.5.23" in message


def test_an_engine_whose_plugin_is_kept_out_does_not_start() -> None:
    ended = python(
        "from serving.cpu.engine import main; main(['--model-path', '/nowhere', '--device', 'cpu'])",
        SGLANG_PLUGINS="another",
    )
    assert ended.returncode == 1
    assert "SGLang did not load the plugin" in ended.stderr


# What can be seen before anything of the engine is imported.


def test_a_required_patch_that_failed_ends_the_engine(other_version: dict[str, str]) -> None:
    said = sentence(python(REGISTER, **other_version))
    assert "which this engine should not run without, FAILED: nobody has looked at SGLang 0.5.99; the patches" in said
    assert said.endswith(", or SGLANG_DSV4_PATCH_POLICY=warn")
    assert "install sglang==0.5.23, or run without it: SGLANG_DSV4_DISABLE_PATCHES=" in said


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"SGLANG_DSV4_PATCH_POLICY": "off"},
            snapshot('dsv4: error: SGLANG_DSV4_PATCH_POLICY is "off", and must be enforce or warn'),
        ),
        (
            {"SGLANG_DSV4_DISABLE_PATCHES": "inflight-watchdg", "SGLANG_DSV4_PATCH_POLICY": "warn"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_DISABLE_PATCHES names inflight-watchdg, which is no patch; did you mean inflight-watchdog?"
            ),
        ),
        (
            {"SGLANG_DSV4_BF16_INDEX_K": "1", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_BF16_INDEX_K is on and SGLANG_OPT_USE_MULTI_STREAM_OVERLAP is on: the indexer's keys are corrupted under CUDA-graph capture, and attention looks at the wrong tokens; set SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0, or leave the keys in FP8"
            ),
        ),
        (
            {"SGLANG_DSV4_BF16_INDEX_K": "on", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "off"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_BF16_INDEX_K is on and SGLANG_OPT_USE_MULTI_STREAM_OVERLAP is on (SGLANG_OPT_USE_MULTI_STREAM_OVERLAP is 'off', for which SGLang takes the default, on): the indexer's keys are corrupted under CUDA-graph capture, and attention looks at the wrong tokens; set SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0, or leave the keys in FP8"
            ),
        ),
        (
            {"SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT": "60s", "SGLANG_DSV4_PATCH_POLICY": "warn"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT must be 0 (no limit) or from 0.5 to 86400 seconds, not '60s'"
            ),
        ),
        (
            {"SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT": "1"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT must be 0 (no limit) or from 3 to 86400 seconds, not 1.0"
            ),
        ),
        (
            {"SGLANG_DSV4_LOST_DECODE_GRACE": "nan"},
            snapshot("dsv4: error: SGLANG_DSV4_LOST_DECODE_GRACE must be from 2 to 86400 seconds, not nan"),
        ),
        (
            {"SGLANG_DSV4_ALLOW_HOLD": "maybe", "SGLANG_DSV4_DISABLE_PATCHES": "all"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_ALLOW_HOLD is 'maybe', and must be one of 1, true, yes, y, on, 0, false, no, n, off, or empty"
            ),
        ),
        (
            {"SGLANG_DSV4_BF16_INDEX_K": "1", "SGLANG_DSV4_PATCH_POLICY": "warn"},
            snapshot(
                "dsv4: error: SGLANG_DSV4_BF16_INDEX_K is on and SGLANG_OPT_USE_MULTI_STREAM_OVERLAP is on: the indexer's keys are corrupted under CUDA-graph capture, and attention looks at the wrong tokens; set SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0, or leave the keys in FP8"
            ),
        ),
    ],
)
def test_what_is_set_up_wrongly_ends_the_engine(environment: dict[str, str], said: str) -> None:
    assert sentence(python(REGISTER, **environment)) == said


def test_an_error_of_ours_is_not_swallowed(tmp_path: Path) -> None:
    code = f"import serving.patches; serving.patches.__path__.append({str(tmp_path)!r}); {REGISTER}"
    (tmp_path / "zz_broken.py").write_text("import no_such_module")
    ended = python(code)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == snapshot(
        "dsv4: error: the plugin of this package cannot do its work (ModuleNotFoundError: No module named 'no_such_module'); an engine without it has SGLang's own defects, and runs with SGLANG_PLUGINS=none"
    )


# With SGLang's plugin loader, as every process of an engine runs it.


def test_sglang_does_not_swallow_it(other_version: dict[str, str]) -> None:
    ended = python(AS_SGLANG_DOES, **other_version)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("dsv4: error: patch ")


def test_with_the_policy_warn_it_is_said_and_the_engine_goes_on(other_version: dict[str, str]) -> None:
    code = f"{AS_SGLANG_DOES}; from serving.patches import registry; print({{s.status for s in registry.standings()}})"
    ended = python(code, SGLANG_DSV4_PATCH_POLICY="warn", **other_version)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "served"
    assert "'applied'" not in ended.stdout
    said = [line for line in ended.stderr.splitlines() if line.startswith("dsv4 patch")]
    assert said[0].endswith(" FAILED")
    assert len(said) > 1
    assert all(
        " FAILED, and the engine goes on without: nobody has looked at SGLang 0.5.99" in line for line in said[1:]
    )
    assert digest(ended.stderr).first_error is None


SETTINGS_THAT_PASS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_DSV4_BF16_INDEX_K": "1",
    "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0",
    "SGLANG_DSV4_ALLOW_HOLD": "1",
    "PYTHONPATH": STANDINS,
}


def test_on_the_pinned_engine_every_hook_is_in_force() -> None:
    """All patches at once, in a process that has imported what a scheduler imports; half of a bad pair does no harm."""
    code = f"""
import time, sglang.srt.managers.scheduler
began = time.process_time()
{AS_SGLANG_DOES}
took = time.process_time() - began
import json, pkgutil
from serving.patches import registry
in_force = {{
    f"{{patch.name}} {{hook.target}}": registry._in_force(registry._Prepared(hook, pkgutil.resolve_name(hook.function)))
    for patch in registry.discover() for hook in patch.hooks
}}
print(json.dumps([[[s.name, s.status] for s in registry.standings()], in_force, took]))
"""
    ended = python(code, **SETTINGS_THAT_PASS)
    assert ended.returncode == 0, ended.stderr
    served, answer = ended.stdout.splitlines()
    standings, in_force, took = json.loads(answer)
    assert served == "served"
    unneeded = {name for name, status in standings if status != "applied"}
    assert {status for _, status in standings} <= {"applied", "not needed"}
    assert {hook: found for hook, found in in_force.items() if found == (hook.split()[0] in unneeded)} == {}
    assert f"dsv4 patches: {len(standings) - len(unneeded)} applied" in ended.stderr
    assert digest(ended.stderr).first_error is None
    # About 1 s; SGLang's own search for other names of each method would take several times that.
    assert took < 5


WHERE_THE_COMMAND_LINE_SHOWS_NOTHING = f"""
import json, os, sys
from types import SimpleNamespace
sys.argv = ["program", "--config", "engine.yaml"]
{AS_SGLANG_DOES}
from sglang.srt.server_args import ServerArgs

def attempt(mode, *overrides):
    # SGLang's own check needs a model, and is not reached where we refuse.
    settled = SimpleNamespace(
        disaggregation_mode=mode, disaggregation_transfer_backend="nixl", disable_custom_all_reduce=False,
        _resolved_overrides=overrides,
    )
    try:
        ServerArgs.check_server_args(settled)
    except SystemExit as ended:
        return str(ended.code)
    except AttributeError as missing:
        return f"SGLang's own: {{missing}}"

print(json.dumps([attempt("null"), attempt("decode"), attempt("null", ("x", {{"disaggregation_mode": "decode"}}))]))
"""


def test_a_hazard_is_found_in_what_an_engine_starts_with_wherever_that_comes_from() -> None:
    ended = python(
        WHERE_THE_COMMAND_LINE_SHOWS_NOTHING,
        SGLANG_USE_CPU_ENGINE="1",
        PYTHONPATH=STANDINS,
        SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE="false",
        NCCL_GRAPH_FILE="",
    )
    assert ended.returncode == 0, ended.stderr
    served, answer = ended.stdout.splitlines()
    unified, decode, resolved = json.loads(answer)
    assert served == "served"
    assert unified.startswith("SGLang's own: ")
    assert decode == resolved
    assert decode.startswith(
        "dsv4: error: SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE is switched off and --disaggregation-mode decode or "
        "prefill: "
    )


def test_all_patches_can_be_switched_off_and_a_gpu_engine_imports_nothing_of_the_cpu_engine() -> None:
    code = f"import sys; {AS_SGLANG_DOES}; print([name for name in sys.modules if name.startswith('serving.cpu')])"
    ended = python(code, SGLANG_DSV4_DISABLE_PATCHES="all")
    assert (ended.returncode, ended.stdout) == (0, "served\n[]\n"), ended.stderr
    (said,) = [line for line in ended.stderr.splitlines() if line.startswith("dsv4")]
    assert said.startswith("dsv4 patches: ")
    assert said.endswith(" skipped")


WHAT_SGLANG_DOES_NOT_APPLY = """
import json, dataclasses
from sglang.srt.plugins.hook_registry import HookRegistry
from serving.patches import registry
from serving.patches.patch import Hook, Patch

FUNCTION = Hook("sglang.srt.plugins.load_plugins_by_group", "before", "gc:isenabled")

def replaced(name):
    # The method is there when its hook is registered, and gone once the class was replaced.
    path = f"sglang.srt.environ.{name}"
    return Hook(path, "replace", "fractions:Fraction"), Hook(f"{path}.parse", "before", "gc:isenabled")

def patch(name, *hooks, **more):
    return Patch(name, "d", "s", "", "", "w", hooks, (), **more)

def attempt(*patches, **environment):
    own = HookRegistry.__dict__["apply_hooks"]
    try:
        registry.apply(environment, patches)
        HookRegistry.apply_hooks()
        return [[s.status, s.reason] for s in registry.standings()]
    except SystemExit as ended:
        return str(ended.code)
    finally:
        HookRegistry.apply_hooks = own
        HookRegistry.reset()

warn = {"SGLANG_DSV4_PATCH_POLICY": "warn"}
outcomes = {
    "a class cannot be wrapped": attempt(
        patch("whole", FUNCTION), patch("wrapped", Hook("sglang.srt.environ.EnvJSON", "after", "gc:isenabled")), **warn
    ),
    "half a patch": attempt(patch("half", *replaced("EnvJSON")), **warn),
}
for policy, name in (("warn", "EnvTuple"), ("enforce", "EnvFloat")):
    class_, method = replaced(name)
    outcomes[policy] = attempt(patch("class", class_), patch("method", method), SGLANG_DSV4_PATCH_POLICY=policy)
class_, method = replaced("EnvInt")
outcomes["relied on"] = attempt(patch("class", class_, relies_on=("method",)), patch("method", method), **warn)
print(json.dumps(outcomes))
"""


def test_what_sglang_did_not_apply_is_found_out() -> None:
    ended = python(WHAT_SGLANG_DOES_NOT_APPLY)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == snapshot(
        {
            "a class cannot be wrapped": [
                ["applied", "SGLang 0.5.23 has the defect, and the code that it was written against"],
                ["FAILED", "TypeError: sglang.srt.environ.EnvJSON is a class, which only another class can replace"],
            ],
            "half a patch": "dsv4: error: patch half is in force by half: SGLang did not apply it to sglang.srt.environ.EnvJSON.parse (its log says why); switch it off with SGLANG_DSV4_DISABLE_PATCHES=half",
            "warn": [
                ["applied", "SGLang 0.5.23 has the defect, and the code that it was written against"],
                ["FAILED", "SGLang did not apply it to sglang.srt.environ.EnvTuple.parse (its log says why)"],
            ],
            "enforce": "dsv4: error: patch method, which this engine should not run without, FAILED: SGLang did not apply it to sglang.srt.environ.EnvFloat.parse (its log says why); install sglang==0.5.23, or run without it: SGLANG_DSV4_DISABLE_PATCHES=method, or SGLANG_DSV4_PATCH_POLICY=warn",
            "relied on": "dsv4: error: patch class is in force, and it does harm without method, which is FAILED; switch it off with SGLANG_DSV4_DISABLE_PATCHES=class",
        }
    )
