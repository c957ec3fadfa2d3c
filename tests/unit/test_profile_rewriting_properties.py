"""Laws of writing a value into a profile, on files that are spelt in every way that TOML has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dsv4ctl.profile.loading import LoadedProfile, load_found
from dsv4ctl.profile.lookup import Found
from dsv4ctl.profile.rewriting import put_back, set_value
from dsv4ctl.profile.schema import Role

pytestmark = pytest.mark.timeout(600)

unhurried = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)

T = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"

spaces = st.sampled_from(["", " ", "  ", "\t"])
spellings = st.sampled_from(["60", '"60"', "'60'", "0x3C", "6_0", '"""60"""', "true"])
names = st.sampled_from([T, f'"{T}"', f"'{T}'"])
decoys = st.sampled_from([f"{T} = 60", "[prefill.env]", "60", "x # y", 'a "quoted" one', "ü, 60, }"])


@dataclass(frozen=True)
class Draw:
    """What is drawn while a profile is written."""

    draw: st.DrawFn

    def one(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def end(self) -> str:
        """What may follow a statement: a comment, blank lines, lines of comments."""
        comment = f"{self.draw(spaces)}# {self.draw(decoys)}" if self.draw(st.booleans()) else self.draw(spaces)
        lines = self.draw(st.lists(st.one_of(spaces, decoys.map(lambda text: f"  # {text}")), max_size=2))
        return "\n".join([comment, *lines, ""])

    def pair(self, key: str, value: str) -> str:
        return f"{key}{self.draw(spaces)}={self.draw(spaces)}{value}"

    def others(self) -> list[str]:
        """Pairs of a table of environment that are about something else."""
        values = {"A": "60", "B": f'"{T} = 60"', "UCX_TLS": '"tcp"'}
        return [self.pair(key, values[key]) for key in self.draw(st.sets(st.sampled_from(list(values))))]

    def pairs(self, *, is_set: bool) -> list[str]:
        mine = [self.pair(self.draw(names), self.draw(spellings))] if is_set else []
        return list(self.draw(st.permutations([*self.others(), *mine])))

    def inline(self, pairs: list[str]) -> str:
        room = self.draw(spaces)
        return "{" + room + f"{self.draw(spaces)},{self.draw(spaces)}".join(pairs) + room + "}"

    def header(self, path: str) -> str:
        return f"{self.one('', '  ')}[{path}]{self.end()}"

    def dotted(self, prefix: str, pairs: list[str]) -> str:
        return "".join(f"{prefix}{self.one('.', ' . ')}{pair}{self.end()}" for pair in pairs)

    def own(self, pairs: list[str]) -> str:
        return "".join(f"{self.one('', '  ')}{pair}{self.end()}" for pair in pairs)


@st.composite
def files(draw: st.DrawFn) -> str:
    """A profile that extends `cpu`; the value is set nowhere, for all, for prefill, or for workers."""
    d = Draw(draw)
    root = draw(st.permutations([d.pair("extends", '"cpu"'), d.pair("name", '"mine"')]))
    text = d.end() + d.own(list(root))
    tables: list[str] = []
    env = d.pairs(is_set=draw(st.booleans()))
    match d.one("none", "table", "inline", "dotted"):
        case "table":
            tables.append(d.header("env") + d.own(env))
        case "inline":
            text += d.own([d.pair("env", d.inline(env))])
        case "dotted":
            text += d.dotted("env", env)
    prefill = d.pairs(is_set=draw(st.booleans()))
    workers = [d.pairs(is_set=draw(st.booleans())) for _ in range(draw(st.integers(1, 2)))]
    kind = d.one("none", "tables", "keys", "inline", "dotted")
    if kind == "inline":
        text += d.own([d.pair("prefill", d.inline(_keys(d, prefill, workers)))])
    elif kind == "dotted":
        text += d.dotted("prefill", _keys(d, prefill, workers))
    elif kind == "keys":
        tables.append(d.header("prefill") + d.own(_keys(d, prefill, workers)))
    elif kind == "tables":
        parts = [d.header("prefill.args") + d.own(["a = 60"])] if draw(st.booleans()) else []
        parts += [d.header("prefill . env") + d.own(prefill)] if draw(st.booleans()) else []
        parts += ["".join(_worker_table(d, at, pairs) for at, pairs in enumerate(workers))]
        tables += draw(st.permutations(parts))
    tables += [d.header("decode.env") + d.own(d.pairs(is_set=draw(st.booleans())))] if draw(st.booleans()) else []
    text += "".join(draw(st.permutations(tables)))
    text = text.removesuffix("\n") if draw(st.booleans()) else text
    return draw(st.sampled_from(["", "\ufeff"])) + text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


def _keys(d: Draw, prefill: list[str], workers: list[list[str]]) -> list[str]:
    """The keys of a role's own table."""
    keys = [f"env.{pair}" for pair in prefill] if d.draw(st.booleans()) else [d.pair("env", d.inline(prefill))]
    if d.draw(st.booleans()):
        made = (d.inline([*_ports(at), d.pair("env", d.inline(pairs))]) for at, pairs in enumerate(workers))
        breaks = d.one(" ", "\n", " # 60 }\n  ")
        keys.append(d.pair("workers", f"[{breaks}{f',{breaks}'.join(made)}{breaks}]"))
    return list(d.draw(st.permutations(keys))) if keys and "." not in keys[0] else keys


def _ports(at: int) -> list[str]:
    return [f"port = {40100 + at}", f"bootstrap_port = {8998 + at}"]


def _worker_table(d: Draw, at: int, pairs: list[str]) -> str:
    start = f"[[prefill.workers]]{d.end()}{d.own(_ports(at))}"
    match d.one("table", "inline", "dotted"):
        case "table":
            return start + d.header("prefill.workers.env") + d.own(pairs)
        case "inline":
            return start + d.own([d.pair("env", d.inline(pairs))])
    return start + d.dotted("env", pairs)


def loaded(path: Path, text: str) -> LoadedProfile:
    """`text` as it is read from a file."""
    path.write_bytes(text.encode())
    return load_found(Found(path, path.name, "the test"), cwd=path.parent)


def rest(profile: LoadedProfile) -> dict[str, Any]:
    """All of a profile but the value that prefill has."""
    data = profile.profile.model_dump()
    for table in (data, data["prefill"], *data["prefill"]["workers"]):
        table["env"] = {name: value for name, value in table["env"].items() if name != T}
    return data


def values(profile: LoadedProfile) -> list[str | None]:
    prefills = [worker for worker in profile.profile.workers if worker.role is Role.PREFILL]
    envs = [profile.worker_env(worker) for worker in prefills]
    return [env[T].value if T in env else None for env in envs]


def comments(text: str, *, of_value: bool) -> list[str]:
    """The comment of each line; those that go with a value of their own line are left out unless `of_value`."""
    parts = [line.partition("# ") for line in text.split("\n")]
    return [
        comment.rstrip("\r")
        for before, mark, comment in parts
        if mark and (of_value or T not in before or "{" in before)
    ]


def check_lines(shorter: str, longer: str, *, of_value: bool) -> None:
    """All comments are in both, and each line too, but for those that have the value or an inline table for it."""
    assert comments(shorter, of_value=of_value) == comments(longer, of_value=of_value)
    kept = iter([*longer.replace("\r\n", "\n").split("\n"), ""])
    lines = shorter.replace("\r\n", "\n").split("\n")
    assert [line for line in lines if T not in line and "{" not in line and line not in kept] == []
    assert ("\r" in longer, "\r" in shorter) in {(True, True), (False, False)}
    assert all(text.count("\r") in (0, text.count("\n")) for text in (shorter, longer))


@seed(1)
@unhurried
@given(files(), st.sampled_from([15, 2.5, 61.0]))
def test_a_value_is_set_for_all_of_prefill_and_nothing_else_is_touched(tmp_path: Path, text: str, value: float) -> None:
    path = tmp_path / "p.toml"
    before = loaded(path, text)
    found = Found(path, "p.toml", "the test")
    rewrite = set_value(found, T, value, role=Role.PREFILL, cwd=tmp_path)
    assert rewrite.before_text == text
    after = loaded(path, rewrite.after_text)
    assert set(values(after)) == {f"{value:g}"}
    assert rest(after) == rest(before)
    check_lines(text, rewrite.after_text, of_value=True)
    # And it is as it was when it is taken back.
    back = put_back(found, rewrite.changes, cwd=tmp_path)
    assert back.after_text == text
    if {change.before for change in rewrite.changes} == {"60"}:
        path.write_bytes(rewrite.after_text.encode())
        assert set_value(found, T, 60, role=Role.PREFILL, cwd=tmp_path).after_text == text


@seed(2)
@unhurried
@given(files())
def test_what_is_taken_out_leaves_the_rest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.toml"
    before = loaded(path, text)
    rewrite = set_value(Found(path, "p.toml", "the test"), T, None, role=Role.PREFILL, cwd=tmp_path)
    after = loaded(path, rewrite.after_text)
    assert rest(after) == rest(before)
    check_lines(rewrite.after_text, text, of_value=False)
