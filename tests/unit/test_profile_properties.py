"""Laws of merging, of loading, and of the lint, on generated input."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dsv4ctl.knobs import Registry, snapshot, wrong_name
from dsv4ctl.names import edits
from dsv4ctl.profile import Profile, load_profile
from dsv4ctl.profile.show import to_toml
from dsv4ctl.profile.sources import document_of, merge, prune, without
from dsv4ctl.profile.statements import locate

pytestmark = pytest.mark.timeout(600)

# A machine that is busy with something else proves nothing about us.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
plain_text = text.filter(lambda value: "\0" not in value)
scalars = st.one_of(text, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False))
leaves = st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple))

# As in a profile, a name is a table in every document or in none.
tables = st.recursive(
    st.dictionaries(st.sampled_from("abc"), leaves, max_size=3),
    lambda inner: st.builds(
        lambda values, nested: {**values, **{f"t_{name}": table for name, table in nested.items()}},
        st.dictionaries(st.sampled_from("abc"), leaves, max_size=2),
        st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    ),
    max_leaves=8,
)


@seed(1)
@unhurried
@given(tables, tables, tables)
def test_merging_is_associative(first: Any, second: Any, third: Any) -> None:
    a, b, c = (document_of(data, source) for data, source in ((first, "a"), (second, "b"), (third, "c")))
    left, right = merge(merge(a, b), c), merge(a, merge(b, c))
    assert left == right


@seed(2)
@unhurried
@given(tables)
def test_merging_is_idempotent_and_has_a_neutral_element(data: Any) -> None:
    document, nothing = document_of(data, "a"), document_of({}, "nothing")
    assert merge(document, document) == merge(document, nothing) == merge(nothing, document) == document


@seed(3)
@unhurried
@given(tables, tables)
def test_every_value_has_the_origin_that_set_it(base: Any, over: Any) -> None:
    merged = merge(document_of(base, "base"), document_of(over, "over"))

    def visit(node: Mapping[str, Any], path: tuple[str, ...], above: Any) -> None:
        for key, value in node.items():
            here = (*path, key)
            in_over = isinstance(above, Mapping) and key in above
            if isinstance(value, Mapping):
                visit(value, here, above[key] if in_over else None)
            else:
                assert merged.origins[here].source == ("over" if in_over else "base")

    visit(merged.data, (), over)


@seed(4)
@unhurried
@given(tables)
def test_without_takes_out_one_key_and_all_of_it(data: Any) -> None:
    document = document_of(data, "a")
    for path in document.origins:
        if all(isinstance(part, str) for part in path):
            smaller = without(document, path)
            assert smaller is not None
            assert smaller.data == prune(document.data, path)
            assert not [known for known in smaller.origins if known[: len(path)] == path]
    assert without(document, ("not there",)) is None


env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda n: n != "CUDA_VISIBLE_DEVICES")
env_tables = st.dictionaries(
    env_names, st.one_of(plain_text, st.integers(-(2**63), 2**63 - 1), st.booleans()), max_size=3
)
flag_values = st.one_of(scalars, st.lists(scalars, min_size=1, max_size=3).map(tuple))
flag_tables = st.dictionaries(st.from_regex(r"x-[a-z0-9-]{1,8}", fullmatch=True), flag_values, max_size=3)
ports = st.integers(1, 65535)


@st.composite
def profiles(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid profile as tables: one or two prefill workers, one or two decode workers, or a unified one."""
    numbers = iter(draw(st.lists(ports, min_size=14, max_size=14, unique=True)))
    cards = iter(range(100))

    def worker(role: str) -> dict[str, Any]:
        made: dict[str, Any] = {"port": next(numbers), "env": draw(env_tables), "args": draw(flag_tables)}
        if role == "prefill":
            made["bootstrap_port"] = next(numbers)
        if draw(st.booleans()):
            made |= {"numa_node": draw(st.integers(0, 7)), "nccl_port": next(numbers)}
        made["gpus"] = tuple(next(cards) for _ in range(draw(st.integers(0, 4))))
        return made

    roles = draw(st.sampled_from([("prefill", "decode"), ("unified",)]))
    profile: dict[str, Any] = {
        "schema_version": 1,
        "name": draw(st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)),
        "description": draw(text.filter(bool)),
        "supervisor": draw(st.sampled_from(["process", "systemd"])),
        "start": draw(st.sampled_from(["together", "staggered"])),
        "start_within_s": draw(st.floats(0.1, 1e6)),
        "engine": {"version": draw(text.filter(bool))},
        "model": {"path": draw(st.sampled_from(["generated:tiny", "/models/a b", "~/m"])), "served_name": "m"},
        "env": draw(env_tables),
        "args": draw(flag_tables),
        "router": {"port": next(numbers), "env": draw(env_tables), "args": draw(flag_tables)},
    }
    for role in roles:
        workers = tuple(worker(role) for _ in range(draw(st.integers(1, 2))))
        profile[role] = {"env": draw(env_tables), "args": draw(flag_tables), "workers": workers}
    return profile


@seed(5)
@unhurried
@given(profiles())
def test_any_valid_profile_round_trips_through_toml(tmp_path: Path, data: dict[str, Any]) -> None:
    profile = Profile.model_validate(data)
    written = to_toml(profile, reveal=True)
    (tmp_path / "p.toml").write_text(written, newline="")
    loaded = load_profile("./p.toml", environ={}, cwd=tmp_path, profiles={}, gpus=())
    assert loaded.profile == profile
    # Every value of the file is on the line that its origin names.
    lines = written.split("\n")
    for path, number in locate(written).items():
        key = path[-1] if isinstance(path[-1], str) else path[-2]
        assert str(key) in lines[number - 1]


@pytest.fixture(scope="module")
def registry() -> Registry:
    known = snapshot("0.5.23")
    assert known is not None
    return known


def slips(name: str) -> list[str]:
    """One single-character slip of each kind, at a place and with a letter that depend on the name alone."""
    at = 7 + sum(map(ord, name)) % (len(name) - 7)
    swapped = name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]
    return [
        name[:at] + name[at + 1 :],
        f"{name[:at]}Q{name[at:]}",
        f"{name[:at]}Q{name[at + 1 :]}",
        swapped,
        f"{name[0]}{name[2:]}",
    ]


def test_a_slip_in_any_known_name_is_told(registry: Registry) -> None:
    for name in registry.env:
        if not name.startswith("SGLANG_") or registry.env[name].deprecated:
            continue
        for slip in slips(name):
            if slip in registry.env:
                continue
            said = wrong_name(slip, registry)
            assert said is not None, slip
            guess = said.rsplit("did you mean ", 1)[1].rstrip("?")
            # Two known names may be equally near; then either will do.
            assert guess == name or edits(slip, guess, 2) == 1, (slip, guess)


def test_a_known_name_is_never_called_wrong(registry: Registry) -> None:
    for name, knob in registry.env.items():
        if not knob.deprecated:
            assert wrong_name(name, registry) is None


@seed(6)
@unhurried
@given(st.text("ABQ_", max_size=8), st.text("ABQ_", max_size=8))
def test_edits_are_a_symmetric_distance(left: str, right: str) -> None:
    exact = edits(left, right, 20)
    assert exact == edits(right, left, 20)
    assert (exact == 0) == (left == right)
    for limit in range(4):
        within = edits(left, right, limit)
        assert (within <= limit) == (exact <= limit)
        if exact <= limit:
            assert within == exact
