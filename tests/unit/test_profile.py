"""Profiles: lookup, inheritance, origins, layers, and the profiles that we ship."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from inline_snapshot import snapshot
from pydantic import BaseModel

from dsv4ctl.errors import UsageError
from dsv4ctl.profile import LoadedProfile, Profile, env_text, find_profile, flags, load_profile
from dsv4ctl.profile.lookup import builtin_profiles, local_gpus
from dsv4ctl.profile.show import rows, to_toml
from dsv4ctl.profile.sources import FILE_KEYS
from dsv4ctl.profile.statements import locate

if TYPE_CHECKING:
    from dsv4ctl.profile.schema import ArgScalar

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "profiles"


def load(ref: str, *sets: str, cwd: Path = ROOT) -> LoadedProfile:
    return load_profile(ref, environ={}, cwd=cwd, sets=sets, profiles=builtin_profiles())


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / "named" / f"{name}.toml" for name in ("box", "cpu", "laptop")}


def test_the_argument_comes_first(tmp_path: Path, known: dict[str, Path]) -> None:
    (tmp_path / "dsv4ctl.toml").touch()
    found = find_profile("box", environ={"DSV4CTL_PROFILE": "laptop"}, cwd=tmp_path, profiles=known, gpus=())
    assert (found.path, found.chosen_by) == (known["box"], "the command line")


def test_then_the_variable(tmp_path: Path, known: dict[str, Path]) -> None:
    (tmp_path / "dsv4ctl.toml").touch()
    found = find_profile(None, environ={"DSV4CTL_PROFILE": "laptop"}, cwd=tmp_path, profiles=known, gpus=())
    assert (found.path, found.chosen_by) == (known["laptop"], "DSV4CTL_PROFILE")


def test_then_the_local_file(tmp_path: Path, known: dict[str, Path]) -> None:
    (tmp_path / "dsv4ctl.toml").touch()
    found = find_profile(None, environ={}, cwd=tmp_path, profiles=known, gpus=("a GPU",))
    assert (found.path, found.shown) == (tmp_path / "dsv4ctl.toml", "dsv4ctl.toml")


def test_then_the_machine_decides(tmp_path: Path, known: dict[str, Path]) -> None:
    found = find_profile(None, environ={}, cwd=tmp_path, profiles=known, gpus=())
    assert (found.path, found.chosen_by) == (known["cpu"], "this machine has no NVIDIA GPU")


def test_a_machine_with_gpus_is_not_guessed(tmp_path: Path, known: dict[str, Path]) -> None:
    gpus = ("RTX PRO 6000 at 0000:01:00.0",)
    with pytest.raises(UsageError) as caught:
        find_profile(None, environ={}, cwd=tmp_path, profiles=known, gpus=gpus)
    assert (caught.value.what, caught.value.why, caught.value.hint) == snapshot(
        (
            "no profile was named, and this machine has GPUs, so none is assumed",
            "it has RTX PRO 6000 at 0000:01:00.0",
            "name one of: box, cpu, laptop; or set DSV4CTL_PROFILE, or write ./dsv4ctl.toml",
        )
    )


def test_a_misspelt_profile(tmp_path: Path, known: dict[str, Path]) -> None:
    with pytest.raises(UsageError) as caught:
        find_profile("bxo", environ={}, cwd=tmp_path, profiles=known, gpus=())
    assert (str(caught.value), caught.value.hint) == snapshot(
        (
            'there is no profile "bxo"; did you mean "box"?: the command line named it',
            "there are: box, cpu, laptop; a file is named with its path, such as ./bxo.toml",
        )
    )


def test_a_file_is_relative_to_the_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.toml").touch()
    found = find_profile("sub/x.toml", environ={}, cwd=tmp_path, profiles={}, gpus=())
    assert (found.path, found.shown) == (tmp_path / "sub" / "x.toml", "sub/x.toml")


def test_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    for bus in ("0000:41:00.0", "0000:01:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA RTX PRO 6000\nIRQ:   \t\t 1\n")
    assert local_gpus(tmp_path) == ("NVIDIA RTX PRO 6000 at 0000:01:00.0", "NVIDIA RTX PRO 6000 at 0000:41:00.0")
    assert local_gpus(tmp_path / "none") == ()


def test_every_line_is_found() -> None:
    text = """\
# a comment
name = "x"

[env]
A = 1 # [not.a.table]
"B.C" = '''
[nor.this]
'''
deep.er = { one = 1, two = [1,
  2] }
[[prefill.workers]]
port = 1
[[prefill.workers]]
port = 2
  [prefill.workers.env]
  X = "#"
[prefill.env]
Y = 1
"""
    assert {".".join(str(part) for part in path): line for path, line in locate(text).items()} == snapshot(
        {
            "name": 2,
            "env": 4,
            "env.A": 5,
            "env.B.C": 6,
            "env.deep": 9,
            "env.deep.er": 9,
            "env.deep.er.one": 9,
            "env.deep.er.two": 9,
            "env.deep.er.two.0": 9,
            "env.deep.er.two.1": 9,
            "prefill": 11,
            "prefill.workers": 11,
            "prefill.workers.0": 11,
            "prefill.workers.0.port": 12,
            "prefill.workers.1": 13,
            "prefill.workers.1.port": 14,
            "prefill.workers.1.env": 15,
            "prefill.workers.1.env.X": 16,
            "prefill.env": 17,
            "prefill.env.Y": 18,
        }
    )


def test_inheritance_keeps_the_origin_of_every_value() -> None:
    loaded = load("cpu-mooncake")
    assert {
        key: str(loaded.origin(*key.split("."))) for key in ("name", "env.MC_FORCE_TCP", "env.OMP_NUM_THREADS")
    } == (
        snapshot(
            {
                "name": "profiles/cpu-mooncake.toml:2 name",
                "env.MC_FORCE_TCP": "profiles/cpu-mooncake.toml:8 env.MC_FORCE_TCP",
                "env.OMP_NUM_THREADS": "profiles/cpu.toml:33 env.OMP_NUM_THREADS",
            }
        )
    )
    assert "UCX_TLS" not in loaded.profile.env
    assert loaded.origin("unified").source == "default"


def test_worker_arrays_replace() -> None:
    loaded = load("cpu-2p2d")
    assert [worker.name for worker in loaded.profile.workers] == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert loaded.profile.workers[0].bootstrap_port == 8998
    assert loaded.origin("prefill", "workers", 1, "port").source == "profiles/cpu-2p2d.toml"


def test_layers_from_the_widest_to_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("""\
extends = "cpu"
[env]
A = "all"
B = "all"
C = "all"
D = "all"
[prefill.env]
B = "role"
C = "role"
D = "role"
[[prefill.workers]]
port = 1
bootstrap_port = 2
env = { C = true, D = 4 }
args = { tp-size = 1 }
""")
    loaded = load(
        "./p.toml", "prefill.D=set", "decode-0.A=one", "args.tp-size=2", "router.args.policy=random", cwd=tmp_path
    )
    prefill, decode = loaded.profile.workers
    env = {name: (valued.value, valued.origin.place) for name, valued in loaded.worker_env(prefill).items()}
    assert {name: env[name] for name in "ABCD"} == snapshot(
        {"A": ("all", "p.toml:3"), "B": ("role", "p.toml:8"), "C": ("1", "p.toml:14"), "D": ("set", "--set")}
    )
    assert loaded.worker_env(decode)["A"].value == "one"
    assert loaded.worker_args(prefill)["tp-size"].value == loaded.worker_args(decode)["tp-size"].value == 2
    assert loaded.router_args()["policy"].value == "random"
    assert "A" not in loaded.router_env()


def test_set_reaches_any_key() -> None:
    loaded = load("cpu", "router.port=31000", "prefill.workers[0].port=31001", "canary.deadline_s=5", "start=staggered")
    assert loaded.profile.router is not None
    assert (loaded.profile.router.port, loaded.profile.workers[0].spec.port) == (31000, 31001)
    assert (loaded.profile.canary.deadline_s, loaded.profile.start) == (5, "staggered")
    assert loaded.origin("router", "port").source == "--set"


@pytest.mark.parametrize(("value", "text"), [(True, "1"), (False, "0"), (7, "7"), ("007", "007"), ("", "")])
def test_environment_values_have_one_spelling(value: str | int | bool, text: str) -> None:
    assert env_text(value) == text


def test_flags_become_argv() -> None:
    args: dict[str, ArgScalar] = {
        "a": True,
        "b": False,
        "c": 0.05,
        "d": "x y",
        "e": (1, 2),
        "f": -1,
        "g": "--h",
        "i": 1e-5,
    }
    assert flags(args) == snapshot(
        ("--a", "--c", "0.05", "--d", "x y", "--e", "1", "2", "--f=-1", "--g=--h", "--i", "1e-05")
    )


def test_a_full_size_profile_loads() -> None:
    loaded = load(str(DATA / "eight-gpus.toml"))
    prefill, decode = loaded.profile.workers
    assert (prefill.spec.gpus, prefill.spec.numa_node, prefill.spec.nccl_port) == ((0, 1, 2, 3), 0, 28100)
    assert loaded.worker_env(prefill)["NCCL_DEBUG"].value == "WARN"
    assert "NCCL_DEBUG" not in loaded.worker_env(decode)
    assert loaded.worker_env(decode)["SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"].value == "0"
    assert loaded.worker_args(decode)["cuda-graph-bs-decode"].value == (1, 2, 4, 8, 16, 32, 64)


def test_a_profile_over_two_hosts_loads() -> None:
    loaded = load(str(DATA / "two-hosts.toml"))
    assert [(worker.name, worker.spec.host) for worker in loaded.profile.workers] == [
        ("prefill-0", "prefill-box"),
        ("decode-0", "decode-box"),
        ("decode-1", "decode-box"),
    ]
    assert loaded.profile.hosts["decode-box"].state_dir == "/var/lib/dsv4ctl"


@pytest.mark.parametrize("name", builtin_profiles())
def test_a_built_in_profile_loads_under_its_name(name: str) -> None:
    assert load(name).profile.name == name


@pytest.mark.parametrize("ref", [*builtin_profiles(), str(DATA / "eight-gpus.toml"), str(DATA / "two-hosts.toml")])
def test_what_is_shown_loads_again(ref: str, tmp_path: Path) -> None:
    loaded = load(ref)
    (tmp_path / "shown.toml").write_text(to_toml(loaded.profile))
    assert load("./shown.toml", cwd=tmp_path).profile == loaded.profile


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    loaded = load("cpu", "SGLANG_X_API_KEY=hush", "args.api-key=hush", "args.max-total-tokens=9")
    assert "hush" not in "".join(value for _, value, _ in rows(loaded))
    assert ("prefill-0 args max-total-tokens", "9") in [(key, value) for key, value, _ in rows(loaded)]
    (tmp_path / "p.toml").write_text('extends = "cpu"\n[env]\nA_TOKEN = "hush"\n[args]\napi-key = "hush"\n')
    assert "hush" not in to_toml(load("./p.toml", cwd=tmp_path).profile)


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        pending = [field.annotation]
        while pending:
            inner = pending.pop()
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from models(inner)
            pending += get_args(inner)


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"^\| `([\w.\[\]]+)`", (ROOT / "docs" / "profiles.md").read_text(), re.MULTILINE))
    keys = {name for model in models(Profile) for name in model.model_fields} | set(FILE_KEYS)
    assert keys - documented == set()
    assert documented - keys == set()
