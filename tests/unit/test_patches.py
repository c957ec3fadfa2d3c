"""What a patch says of itself fits the installed SGLang, and what becomes of it follows from that."""

# ruff: noqa: E501 - a sentence stays on its line

import dataclasses
import importlib.metadata
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from serving.patches import registry, source, table
from serving.patches.fingerprint import fingerprint
from serving.patches.patch import Hook, Patch, Upstream
from serving.patches.registry import Standing
from serving.settings import BadSetting

ROOT = Path(__file__).parents[2]
PATCHES = registry.discover()
INSTALLED = Version(importlib.metadata.version("sglang"))
PINNED = Version("0.5.23")
LOAD_PLUGINS = fingerprint("sglang.srt.plugins", "load_plugins")

GOOD = Patch(
    name="good",
    defect="it is broken",
    safe_because="nothing else changes",
    needed_by=">=0.5.15",
    made_for=">=0.5.15,<=0.5.23",
    delete_when="it is mended",
    hooks=(Hook("sglang.srt.plugins.load_plugins", "after", "os.path:join"),),
    upstream=(Upstream("sglang.srt.plugins", "load_plugins", (LOAD_PLUGINS,)),),
)


def judge(patch: Patch, version: Version = PINNED, environment: Mapping[str, str] | None = None) -> Standing:
    return registry.judge_all(environment or {}, [patch], version)[0]


# The patches that there are.


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
class TestEveryPatch:
    def test_is_written_against_the_installed_engine_where_it_is_made_for_it(self, patch: Patch) -> None:
        assert SpecifierSet(patch.made_for).contains(PINNED) or not SpecifierSet(patch.needed_by).contains(PINNED)
        if SpecifierSet(patch.made_for).contains(INSTALLED):
            there = [item for item in patch.upstream if SpecifierSet(item.versions).contains(INSTALLED)]
            found = {item: fingerprint(item.module, item.qualname) for item in there}
            assert [item for item, now in found.items() if now not in item.fingerprints] == []

    def test_says_all_that_is_asked_of_it(self, patch: Patch) -> None:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", patch.name)
        assert all(len(text) > 10 for text in (patch.defect, patch.safe_because, patch.delete_when))
        assert patch.hooks
        assert patch.upstream
        assert {"." in patch.needed_by, "." in patch.made_for} == {True}
        prints = [digits for item in patch.upstream for digits in item.fingerprints]
        assert [digits for digits in prints if not re.fullmatch(r"[0-9a-f]{12}", digits)] == []

    def test_relies_on_patches_that_exist(self, patch: Patch) -> None:
        assert set(patch.relies_on) <= {other.name for other in PATCHES} - {patch.name}

    @pytest.mark.parametrize("version", ["0.4.9", "0.5.14", "0.5.23.post1", "0.5.24", "1.0"])
    def test_fails_on_a_version_that_nobody_has_looked_at(self, patch: Patch, version: str) -> None:
        only_if = {patch.only_if: "1"} if patch.only_if else {}
        standing = judge(dataclasses.replace(patch, relies_on=()), Version(version), only_if)
        assert standing.status == "FAILED"
        assert standing.reason.startswith(f"nobody has looked at SGLang {version}; the patches know ")


def test_there_are_patches_and_their_names_are_unique() -> None:
    names = [patch.name for patch in PATCHES]
    assert names
    assert len(set(names)) == len(names)


def test_every_required_patch_is_applied_or_not_needed_on_the_installed_engine() -> None:
    """Every variable that a patch waits for is set."""
    everything = {patch.only_if: "1" for patch in PATCHES if patch.only_if}
    standings = registry.judge_all(everything, PATCHES, INSTALLED)
    assert [standing for standing in standings if standing.status not in ("applied", "not needed")] == []


def test_two_patches_that_wrap_one_function_do_not_both_replace_it() -> None:
    replaced = [hook.target for patch in PATCHES for hook in patch.hooks if hook.kind == "replace"]
    assert len(set(replaced)) == len(replaced)


def test_the_page_says_of_every_patch_what_the_patch_says() -> None:
    page = (ROOT / "docs" / "patches.md").read_text()
    assert page.endswith(f"## The patches\n\n{table.markdown(PATCHES)}"), (
        "run: sed -i '/^## The patches$/q' docs/patches.md && python -m serving patches --markdown >> docs/patches.md"
    )


def test_the_table_needs_no_engine_and_imports_none() -> None:
    code = (
        "import sys; from serving.__main__ import main; status = main(['patches', '--json']);"
        "heavy = {'torch', 'sglang', 'triton', 'prometheus_client', 'serving.inflight.queue'} & sys.modules.keys();"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    asked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60)
    data = json.loads(asked.stdout)
    assert (data["schema_version"], data["sglang"], data["policy"]) == (1, str(INSTALLED), "enforce")
    assert [patch["name"] for patch in data["patches"]] == [patch.name for patch in PATCHES]
    fields = {field.name for field in dataclasses.fields(Patch)}
    for patch in data["patches"]:
        assert patch.keys() == fields | {"status", "reason"}
        for item in patch["upstream"] if patch["status"] == "applied" else []:
            assert item["installed"] in item["fingerprints"] or item["versions"]


# What becomes of one.


def test_a_patch_is_applied_to_what_it_was_written_against() -> None:
    assert judge(GOOD) == Standing(
        "good", "applied", "SGLang 0.5.23 has the defect, and the code that it was written against", True
    )


CASES = {
    "switched off": (GOOD, {registry.DISABLED: "good"}, "0.5.23", "skipped", snapshot("switched off by SGLANG_DSV4_DISABLE_PATCHES")),
    "all switched off": (GOOD, {registry.DISABLED: " all ,"}, "0.5.23", "skipped", snapshot("switched off by SGLANG_DSV4_DISABLE_PATCHES")),
    "older than anybody has looked at": (GOOD, {}, "0.5.14", "FAILED", snapshot("nobody has looked at SGLang 0.5.14; the patches know 0.5.15 to 0.5.23")),
    "mended upstream": (
        dataclasses.replace(GOOD, needed_by="<0.5.20"), {}, "0.5.23", "not needed", snapshot("SGLang 0.5.23 does not have this defect"),
    ),
    "older than the defect": (
        dataclasses.replace(GOOD, needed_by=">=0.5.17"), {}, "0.5.16", "not needed", snapshot("SGLang 0.5.16 does not have this defect"),
    ),
    "newer than the patch": (
        dataclasses.replace(GOOD, made_for="<0.5.22"), {}, "0.5.23", "FAILED", snapshot("SGLang 0.5.23 needs it, and it is made for <0.5.22"),
    ),
    "newer than anybody has looked at": (
        dataclasses.replace(GOOD, needed_by="<0.5.20"), {}, "0.5.24", "FAILED",
        snapshot("nobody has looked at SGLang 0.5.24; the patches know 0.5.15 to 0.5.23"),
    ),
    "a release candidate counts by its number": (
        GOOD, {}, "0.5.24rc1", "FAILED", snapshot("nobody has looked at SGLang 0.5.24rc1; the patches know 0.5.15 to 0.5.23"),
    ),
    "a post-release in the middle": (
        GOOD, {}, "0.5.18.post1", "applied", snapshot("SGLang 0.5.18.post1 has the defect, and the code that it was written against"),
    ),
    "its variable is not set": (
        dataclasses.replace(GOOD, only_if="SGLANG_DSV4_ALLOW_HOLD"), {}, "0.5.23", "not needed", snapshot("only with SGLANG_DSV4_ALLOW_HOLD=1"),
    ),
    "its variable is set in other words": (
        dataclasses.replace(GOOD, only_if="SGLANG_DSV4_ALLOW_HOLD"), {"SGLANG_DSV4_ALLOW_HOLD": "True"}, "0.5.23", "applied",
        snapshot("SGLang 0.5.23 has the defect, and the code that it was written against"),
    ),
    "its variable is off": (
        dataclasses.replace(GOOD, only_if="SGLANG_DSV4_ALLOW_HOLD"), {"SGLANG_DSV4_ALLOW_HOLD": "off"}, "0.5.23", "not needed",
        snapshot("only with SGLANG_DSV4_ALLOW_HOLD=1"),
    ),
    "code that this version does not have": (
        dataclasses.replace(GOOD, upstream=(*GOOD.upstream, Upstream("sglang.srt.plugins", "gone", ("000000000000",), versions="<0.5.20"))), {}, "0.5.23",
        "applied", snapshot("SGLang 0.5.23 has the defect, and the code that it was written against"),
    ),
    "the code has changed": (
        dataclasses.replace(GOOD, upstream=(Upstream("sglang.srt.plugins", "load_plugins", ("000000000000", "111111111111")),)), {}, "0.5.23", "FAILED",
        snapshot("sglang.srt.plugins:load_plugins has changed since it was written (b5103feace7f, not 000000000000 or 111111111111)"),
    ),
    "the code is gone": (
        dataclasses.replace(GOOD, upstream=(Upstream("sglang.srt.plugins", "unload_plugins", ("000000000000",)),)), {}, "0.5.23", "FAILED",
        snapshot("it was written against code that is gone: sglang.srt.plugins defines no unload_plugins"),
    ),
    "its module is gone": (
        dataclasses.replace(GOOD, upstream=(Upstream("sglang.srt.no_such", "thing", ("000000000000",)),)), {}, "0.5.23", "FAILED",
        snapshot("it was written against code that is gone: this interpreter has no module sglang.srt.no_such"),
    ),
    "what it hooks is gone": (
        dataclasses.replace(GOOD, hooks=(*GOOD.hooks, Hook("sglang.srt.plugins.unload_plugins", "after", "os.path:join"))), {}, "0.5.23", "FAILED",
        snapshot("there is no sglang.srt.plugins.unload_plugins to hook"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_standing(case: str) -> None:
    patch, environment, version, status, reason = CASES[case]
    standing = judge(patch, Version(version), environment)
    assert (standing.status, standing.reason) == (status, reason)


def test_a_patch_is_not_applied_without_those_that_it_relies_on() -> None:
    base, middle, top = (
        dataclasses.replace(GOOD, name=name, relies_on=relies_on)
        for name, relies_on in (("base", ()), ("middle", ("base",)), ("top", ("middle",)))
    )
    standings = registry.judge_all({registry.DISABLED: "base"}, [top, middle, base], PINNED)
    assert [(standing.name, standing.status, standing.reason) for standing in standings] == snapshot(
        [
            ("top", "FAILED", "it does harm without middle, which is FAILED"),
            ("middle", "FAILED", "it does harm without base, which is skipped"),
            ("base", "skipped", "switched off by SGLANG_DSV4_DISABLE_PATCHES"),
        ]
    )
    unneeded = dataclasses.replace(base, needed_by="<0.5.16")
    standings = registry.judge_all({}, [top, middle, unneeded], PINNED)
    assert [standing.status for standing in standings] == ["applied", "applied", "not needed"]


@pytest.mark.parametrize(
    ("without", "fails"),
    [
        # The stages of a pipeline keep what failed until all have said that they are done, and nobody would say it.
        ("pipeline-failure", ["decode-quarantine", "inflight-watchdog", "settled-pages"]),
        ("settled-pages", ["inflight-watchdog"]),
        ("lost-prefill", ["decode-quarantine"]),
        ("decode-is-told", ["inflight-watchdog", "lost-decode"]),
    ],
)
def test_what_does_harm_without_another_does_not_run_without_it(without: str, fails: list[str]) -> None:
    standings = registry.judge_all({registry.DISABLED: without}, PATCHES, PINNED)
    assert [standing.name for standing in standings if standing.status == "FAILED"] == fails


def test_nothing_is_held_where_nothing_would_end_it() -> None:
    environment = {"SGLANG_DSV4_ALLOW_HOLD": "yes"}
    assert {standing.status for standing in registry.judge_all(environment, PATCHES, PINNED)} == {
        "applied",
        "not needed",
    }
    for without in ("inflight-watchdog", "settled-pages"):
        standings = registry.judge_all({**environment, registry.DISABLED: without}, PATCHES, PINNED)
        held = next(standing for standing in standings if standing.name == "held-canary")
        assert held.status == "FAILED"
        assert held.reason.startswith("it does harm without inflight-watchdog, which is ")


@pytest.mark.parametrize("said", ["maybe", " 1", "2"])
def test_a_switch_that_says_neither_yes_nor_no_is_refused(said: str) -> None:
    with pytest.raises(BadSetting, match="SGLANG_DSV4_ALLOW_HOLD is "):
        registry.judge_all({"SGLANG_DSV4_ALLOW_HOLD": said}, PATCHES, PINNED)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {registry.DISABLED: "god"},
            snapshot("SGLANG_DSV4_DISABLE_PATCHES names god, which is no patch; did you mean good?"),
        ),
        (
            {registry.DISABLED: "good,xyz"},
            snapshot("SGLANG_DSV4_DISABLE_PATCHES names xyz, which is no patch; there are good, all"),
        ),
    ],
)
def test_a_patch_that_does_not_exist_cannot_be_switched_off(environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting) as refused:
        judge(GOOD, environment=environment)
    assert str(refused.value) == said


def test_the_policy_is_one_of_two() -> None:
    assert registry.policy_of({}) == "enforce"
    assert registry.policy_of({registry.POLICY: ""}) == "enforce"
    assert registry.policy_of({registry.POLICY: "warn"}) == "warn"
    with pytest.raises(BadSetting, match='"warning", and must be enforce or warn'):
        registry.policy_of({registry.POLICY: "warning"})


# Fingerprints.


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `dsv4_engine` whose modules a test writes."""
    folder = tmp_path / "dsv4_engine"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('nobody may import this')")
    monkeypatch.syspath_prepend(tmp_path)
    source.forget()
    return folder


def printed(engine: Path, code: str, qualname: str) -> str:
    (engine / "module.py").write_text(textwrap.dedent(code))
    source.forget()
    return fingerprint("dsv4_engine.module", qualname)


ORIGINAL = '''
    class Queue:
        def pop(self, *, now: float) -> int:
            """Takes one."""
            return self.items[0] + 1
'''


def test_a_fingerprint_is_the_same_on_every_python(engine: Path) -> None:
    assert printed(engine, ORIGINAL, "Queue.pop") == "9e4c1da9d54c"


@pytest.mark.parametrize(
    "code",
    [
        "class Queue:\n    def pop(self, *, now: float) -> int:\n        return self.items[0] + 1",
        "class Queue:\n    def pop(\n        self, *,\n        now: float,\n    ) -> int:  # one\n        'Other words.'\n        return (self.items[0]\n            + 1)",
        "import os\nif os:\n    class Queue:\n        other = 1\n        def pop(self, *, now: float) -> int:\n            return self.items[0] + 1",
    ],
)
def test_layout_comments_and_docstrings_do_not_count(engine: Path, code: str) -> None:
    assert printed(engine, code, "Queue.pop") == printed(engine, ORIGINAL, "Queue.pop")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 1", "+ 2"),
        ("+ 1", "- 1"),
        ("items", "item"),
        ("*, now", "now"),
        ("-> int", "-> float"),
        ("def", "async def"),
    ],
)
def test_code_counts(engine: Path, old: str, new: str) -> None:
    assert printed(engine, ORIGINAL.replace(old, new), "Queue.pop") != printed(engine, ORIGINAL, "Queue.pop")


def test_all_definitions_of_a_name_count(engine: Path) -> None:
    both = "class A:\n @property\n def x(self): return 1\n @x.setter\n def x(self, to): self.y = {}"
    assert printed(engine, both.format("to"), "A.x") != printed(engine, both.format("0"), "A.x")


@pytest.mark.parametrize("text", ["def (", "a = '\0'", "x = '\ud800'"])
def test_a_file_that_is_no_python_makes_a_patch_fail_with_a_sentence(engine: Path, text: str) -> None:
    (engine / "module.py").write_text(text, errors="surrogatepass")
    said = rf"{engine / 'module.py'} cannot be read as Python: "
    upstream = dataclasses.replace(GOOD, upstream=(Upstream("dsv4_engine.module", "Queue", ("000000000000",)),))
    hooked = dataclasses.replace(GOOD, hooks=(Hook("dsv4_engine.module.Queue", "after", "os.path:join"),))
    for patch in (upstream, hooked):
        standing = judge(patch)
        assert (standing.status, standing.reason[: len(said)]) == ("FAILED", said)
    with pytest.raises(source.NotFound, match="cannot be read as Python"):
        fingerprint("dsv4_engine.module", "Queue")


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        ("dsv4_engine.module.Queue.pop", True),
        ("dsv4_engine.module.Queue.push", False),
        ("dsv4_engine.module.Derived.pop", True),
        ("dsv4_engine.other.Borrowed.pop", True),
        ("dsv4_engine.other.Borrowed.push", False),
        ("dsv4_engine.other.constant", True),
        ("dsv4_engine.other.module", True),
        ("dsv4_engine.other.nobody", False),
        ("dsv4_engine.another.Queue", True),
        ("dsv4_engine.missing.Queue", False),
        ("dsv4_nothing.Queue", False),
    ],
)
def test_a_path_is_followed_through_imports_and_base_classes(engine: Path, path: str, leads: bool) -> None:
    (engine / "module.py").write_text(textwrap.dedent(ORIGINAL) + "\nclass Derived(Queue[int], Generic[int]): ...\n")
    (engine / "other.py").write_text(
        "from dsv4_engine.module import Derived as Borrowed\nfrom dsv4_engine import module\nconstant: int = 1\n"
        "from dsv4_engine.another import nobody"
    )
    (engine / "another.py").write_text("from dsv4_engine.module import *\nfrom dsv4_engine.other import nobody\n")
    assert source.leads_somewhere(path) == leads
