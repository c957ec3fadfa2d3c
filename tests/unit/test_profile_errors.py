"""What is wrong with a profile is said in one sentence each: file and line, key path, and what would be right."""

# ruff: noqa: E501 - a sentence stays on its line

from collections.abc import Callable
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from dsv4ctl.errors import ExitCode, UsageError
from dsv4ctl.facts import GpuFact, HostFacts
from dsv4ctl.profile import ProfileError, load_profile

GOOD = """\
schema_version = 1
name = "pair"
description = "A pair"

[engine]
version = "0.5.23"

[model]
path = "generated:tiny"
served_name = "tiny"

[router]
port = 30000

[prefill]
[[prefill.workers]]
port = 30100
bootstrap_port = 8998
gpus = [0, 1]

[decode]
[[decode.workers]]
port = 30200
gpus = [2, 3]
numa_node = 0
"""


def complaint(text: str, tmp_path: Path, *sets: str) -> str:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_profile("./p.toml", environ={}, cwd=tmp_path, sets=sets)
    assert caught.value.exit_code is ExitCode.USAGE
    return str(caught.value).replace(str(tmp_path), "")


def swap(old: str, new: str) -> Callable[[], str]:
    assert old in GOOD
    return lambda: GOOD.replace(old, new, 1)


def add(text: str) -> Callable[[], str]:
    return lambda: GOOD + text


BAD = {
    "unknown key": (
        swap('name = "pair"', 'name = "pair"\nsuperviser = "systemd"'),
        snapshot('p.toml:3: superviser is not a key of a profile; did you mean "supervisor"?'),
    ),
    "unknown key of a worker": (
        swap("port = 30200", "port = 30200\nnumanode = 1"),
        snapshot('p.toml:24: decode.workers[0].numanode is not a key of a profile; did you mean "numa_node"?'),
    ),
    "unknown key like nothing": (
        swap("[router]", "[router]\nzzz = 1"),
        snapshot(
            "p.toml:13: router.zzz is not a key of a profile; known here: module, host, listen, port, metrics_port, env, args"
        ),
    ),
    "unknown table": (
        add("[cannary]\nsmall_tokens = 1\n"),
        snapshot('p.toml:26: cannary is not a key of a profile; did you mean "canary"?'),
    ),
    "unknown key of a host": (
        add('[hosts.box]\nssh = "box"\nstatedir = "/x"\n'),
        snapshot('p.toml:28: hosts.box.statedir is not a key of a profile; did you mean "state_dir"?'),
    ),
    "string for a port": (
        swap("port = 30000", 'port = "30000"'),
        snapshot('p.toml:13: router.port must be an integer, not "30000"'),
    ),
    "port out of range": (
        swap("port = 30000", "port = 70000"),
        snapshot("p.toml:13: router.port must be at most 65535, not 70000"),
    ),
    "port of zero": (swap("port = 30000", "port = 0"), snapshot("p.toml:13: router.port must be at least 1, not 0")),
    "table for a string": (
        swap('version = "0.5.23"', "version = {}"),
        snapshot("p.toml:6: engine.version must be a string, not a table"),
    ),
    "string for a table": (
        lambda: "router = 3\n" + GOOD.replace("[router]\nport = 30000\n", ""),
        snapshot("p.toml:1: router must be a table, not 3"),
    ),
    "one of": (
        swap('name = "pair"', 'name = "pair"\nsupervisor = "docker"'),
        snapshot('p.toml:3: supervisor must be "process" or "systemd", not "docker"'),
    ),
    "other schema": (
        swap("schema_version = 1", "schema_version = 2"),
        snapshot("p.toml:1: schema_version must be 1, not 2"),
    ),
    "missing key": (
        swap('served_name = "tiny"', ""),
        snapshot("p.toml:8: model.served_name is missing; it must be a string"),
    ),
    "missing table": (
        swap('[engine]\nversion = "0.5.23"\n', ""),
        snapshot("p.toml: engine is missing; add a table [engine]"),
    ),
    "no workers": (
        swap("[[decode.workers]]\nport = 30200\ngpus = [2, 3]\nnuma_node = 0", "workers = []"),
        snapshot("p.toml:22: decode.workers must have at least one element, not an empty list"),
    ),
    "missing bootstrap": (
        swap("bootstrap_port = 8998\n", ""),
        snapshot("p.toml:16: prefill.workers[0].bootstrap_port is missing; it must be an integer"),
    ),
    "bad name": (
        swap('name = "pair"', 'name = "Pair 1"'),
        snapshot(
            'p.toml:2: name must be lower-case letters, digits and dashes, at most 40 (unit names contain it), not "Pair 1"'
        ),
    ),
    "relative model": (
        swap("generated:tiny", "models/tiny"),
        snapshot(
            'p.toml:9: model.path must be an absolute path on the host, or "generated:NAME" for a model made here, not "models/tiny"'
        ),
    ),
    "float in env": (
        add("[env]\nSGLANG_X = 1.5\n"),
        snapshot(
            "p.toml:27: env.SGLANG_X must be a string, an integer, true or false (put any other value in quotes), not 1.5"
        ),
    ),
    "bad env name": (
        add('[env]\n"SGLANG X" = 1\n'),
        snapshot(
            'p.toml:27: env."SGLANG X" is not an environment name: letters, digits and _ only, not starting with a digit'
        ),
    ),
    "dashed flag": (
        add('[args]\n"--tp-size" = 1\n'),
        snapshot("p.toml:27: args.--tp-size is not a flag name: write it as in --help, without the leading dashes"),
    ),
    "table as flag": (
        add("[args.tp-size]\nx = 1\n"),
        snapshot(
            "p.toml:26: args.tp-size must be a string, a number, true, false, or a list of strings and numbers, not a table"
        ),
    ),
    "negative deadline": (
        add("[canary]\ndeadline_s = -1\n"),
        snapshot("p.toml:27: canary.deadline_s must be more than 0, not -1"),
    ),
    "bad GPU": (
        swap("gpus = [2, 3]", 'gpus = [2, "third"]'),
        snapshot(
            'p.toml:24: decode.workers[0].gpus[1] must be a GPU index such as 0, a PCI bus id such as "0000:41:00.0", or "4 nearest to node 0", not "third"'
        ),
    ),
    "negative node": (
        swap("numa_node = 0", "numa_node = -1"),
        snapshot("p.toml:25: decode.workers[0].numa_node must be at least 0, not -1"),
    ),
    "two on one port": (
        swap("port = 30200", "port = 30100"),
        snapshot(
            "p.toml:23: decode.workers[0].port 30100 is already taken on host local by prefill.workers[0].port (p.toml:17); choose another"
        ),
    ),
    "router's port taken": (
        swap("port = 30000", "port = 8998"),
        snapshot(
            "p.toml:13: router.port 8998 is already taken on host local by prefill.workers[0].bootstrap_port (p.toml:18); choose another"
        ),
    ),
    "GPU used twice": (
        swap("gpus = [2, 3]", "gpus = [1, 3]"),
        snapshot(
            "p.toml:24: decode.workers[0].gpus[0] 1 is already used on host local by prefill.workers[0].gpus[1] (p.toml:19); give each GPU to one worker"
        ),
    ),
    "bus id used twice": (
        swap("gpus = [2, 3]", 'gpus = ["41:00.0", "00000000:41:00.0"]'),
        snapshot(
            "p.toml:24: decode.workers[0].gpus[1] 00000000:41:00.0 is already used on host local by decode.workers[0].gpus[0] (p.toml:24); give each GPU to one worker"
        ),
    ),
    "prefill alone": (
        lambda: GOOD[: GOOD.index("[decode]")],
        snapshot("p.toml:15: prefill needs a [decode] beside it: one half cannot answer alone"),
    ),
    "unified beside": (
        add("[[unified.workers]]\nport = 1\n"),
        snapshot("p.toml:26: unified must not stand beside prefill (p.toml:15): use either"),
    ),
    "no router": (
        swap("[router]\nport = 30000\n", ""),
        snapshot("p.toml:13: prefill needs a [router], which joins prefill and decode"),
    ),
    "nothing to run": (
        lambda: GOOD[: GOOD.index("[router]")],
        snapshot("p.toml: prefill is missing: add [prefill] and [decode], or else [unified]"),
    ),
    "two unified without router": (
        lambda: GOOD[: GOOD.index("[router]")] + "[[unified.workers]]\nport = 1\n[[unified.workers]]\nport = 2\n",
        snapshot("p.toml:12: unified.workers needs a [router], as there is more than one worker"),
    ),
    "unknown host": (
        swap("port = 30200", 'port = 30200\nhost = "box"'),
        snapshot('p.toml:24: decode.workers[0].host "box" is not in [hosts]; known here: local'),
    ),
    "host called local": (
        add('[hosts.local]\nssh = "me"\n'),
        snapshot("p.toml:26: hosts.local is the machine dsv4ctl runs on; give this host another name"),
    ),
    "remote without python": (
        lambda: (
            GOOD.replace("port = 30200", 'port = 30200\nhost = "box"\nlisten = "10.0.0.2"').replace(
                "port = 30100", 'port = 30100\nlisten = "10.0.0.1"'
            )
            + '[hosts.box]\nssh = "b"\n'
        ),
        snapshot(
            "p.toml:5: engine.python is missing: decode.workers[0] runs on box, and its interpreter must be named"
        ),
    ),
    "loopback over hosts": (
        lambda: (
            GOOD.replace("port = 30200", 'port = 30200\nhost = "box"').replace(
                'version = "0.5.23"', 'version = "0.5.23"\npython = "/x"'
            )
            + '[hosts.box]\nssh = "b"\n'
        ),
        snapshot("""\
p.toml:17: prefill.workers[0].listen must be the address of local that the other hosts reach, not 127.0.0.1
p.toml:23: decode.workers[0].listen must be the address of box that the other hosts reach, not 127.0.0.1\
"""),
    ),
    "reserved flag": (
        add("[prefill.args]\nport = 3\n"),
        snapshot("p.toml:27: prefill.args.port must not be set here: it comes from a worker's port"),
    ),
    "GPUs twice over": (
        add("[decode.env]\nCUDA_VISIBLE_DEVICES = 3\n"),
        snapshot(
            "p.toml:27: decode.env.CUDA_VISIBLE_DEVICES must not be set: it comes from decode.workers[0].gpus (p.toml:24)"
        ),
    ),
    "canary too large": (
        add("[args]\ncontext-length = 4096\n"),
        snapshot(
            "p.toml: canary.large_tokens 4096 does not fit the context of prefill-0; stay below 4096, args.context-length (p.toml:27)"
        ),
    ),
    "not TOML": (
        add("[[[\n"),
        snapshot("p.toml: not valid TOML: Invalid initial character for a key part (at line 26, column 3)"),
    ),
    "key twice": (
        add('[hosts.a]\nssh = "x"\nssh = "y"\n'),
        snapshot("p.toml: not valid TOML: Cannot overwrite a value (at line 28, column 10)"),
    ),
    "extends a number": (
        lambda: "extends = 3\n" + GOOD,
        snapshot("p.toml:1: extends must be the name of a built-in profile, or a path relative to this file"),
    ),
    "extends nothing": (
        lambda: 'extends = "cpuu"\n' + GOOD,
        snapshot('there is no profile "cpuu"; did you mean "cpu"?: extends in p.toml:1 named it'),
    ),
    "extends a missing file": (
        lambda: 'extends = "./nowhere.toml"\n' + GOOD,
        snapshot("there is no profile file /nowhere.toml: extends in p.toml:1 named it"),
    ),
    "extends itself": (
        lambda: 'extends = "p.toml"\n' + GOOD,
        snapshot("p.toml: extends goes round in a circle: p.toml -> p.toml"),
    ),
    "without alone": (
        lambda: 'without = ["env"]\n' + GOOD,
        snapshot('p.toml:1: without leaves keys out of an extended profile; say which with extends = "NAME"'),
    ),
    "several at once": (
        lambda: GOOD.replace("port = 30000", 'port = "x"\nprot = 1').replace("numa_node = 0", "numa_node = true"),
        snapshot("""\
p.toml:13: router.port must be an integer, not "x"
p.toml:14: router.prot is not a key of a profile; did you mean "port"?
p.toml:26: decode.workers[0].numa_node must be an integer, not true\
"""),
    ),
    "unknown key and a port twice": (
        lambda: GOOD.replace("port = 30200", "port = 30100\nprot = 1"),
        snapshot("""\
p.toml:23: decode.workers[0].port 30100 is already taken on host local by prefill.workers[0].port (p.toml:17); choose another
p.toml:24: decode.workers[0].prot is not a key of a profile; did you mean "port"?\
"""),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_profile_is_explained(case: str, tmp_path: Path) -> None:
    text, expected = BAD[case]
    assert complaint(text(), tmp_path) == expected


SETS = {
    "no value": ("SGLANG_X", snapshot("--set SGLANG_X: must be KEY=VALUE")),
    "no key": ("=1", snapshot("--set =...: the key is neither an environment name nor a key of a profile")),
    "unknown key": ("router.prot=1", snapshot('--set: router.prot is not a key of a profile; did you mean "port"?')),
    "wrong type": ("router.port=high", snapshot('--set: router.port must be an integer, not "high"')),
    "no such element": (
        "prefill.workers[3].port=1",
        snapshot("--set prefill.workers[3].port: the profile has no element [3] there"),
    ),
    "through a value": ("name.x=1", snapshot("--set name.x: there is no table to put x in")),
    "no such worker": (
        "decode-4.SGLANG_X=1",
        snapshot(
            "--set: decode-4.SGLANG_X has no target decode-4 here; there are: prefill, decode, prefill-0, decode-0, router"
        ),
    ),
    "port taken": (
        "router.port=30100",
        snapshot(
            "--set: router.port 30100 is already taken on host local by prefill.workers[0].port (p.toml:17); choose another"
        ),
    ),
}


@pytest.mark.parametrize("case", SETS)
def test_a_bad_set_is_explained(case: str, tmp_path: Path) -> None:
    text, expected = SETS[case]
    assert complaint(GOOD, tmp_path, text) == expected


def test_a_problem_in_an_extended_profile_names_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(GOOD)
    child = 'extends = "base.toml"\nname = "child"\n[router]\nport = 30200\n'
    assert complaint(child, tmp_path) == snapshot(
        "p.toml:4: router.port 30200 is already taken on host local by decode.workers[0].port (base.toml:23); choose another"
    )


def test_without_names_a_key_that_the_extended_profile_has(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(GOOD)
    assert complaint('extends = "base.toml"\nwithout = ["router.env"]\n', tmp_path) == snapshot(
        'p.toml:2: without names "router.env", which base.toml does not have'
    )


def test_every_problem_is_there_for_a_program(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(GOOD.replace("30000", '"x"').replace("gpus = [2, 3]", "gpus = [true]"))
    with pytest.raises(ProfileError) as caught:
        load_profile("./p.toml", environ={}, cwd=tmp_path)
    assert [(problem.key, problem.origin.line) for problem in caught.value.problems] == [
        ("router.port", 13),
        ("decode.workers[0].gpus[0]", 24),
    ]


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b'name = "\xff"\n')
    with pytest.raises(UsageError) as caught:
        load_profile("./p.toml", environ={}, cwd=tmp_path)
    assert str(caught.value) == snapshot("p.toml: a profile is UTF-8 text, and byte 8 is not")


FACTS = HostFacts(
    numa_nodes=(0, 1),
    gpus=(GpuFact(0, "00000000:01:00.0", 97_887), GpuFact(1, "00000000:41:00.0", 97_887)),
    memory_available_bytes=None,
    disk_free_bytes=None,
    has_numactl=True,
    has_python=True,
    packages={},
    model_directory=True,
    model_config=True,
    model_bytes=None,
)


def test_what_the_host_does_not_have(tmp_path: Path) -> None:
    text = GOOD.replace("numa_node = 0", "numa_node = 2").replace("gpus = [2, 3]", 'gpus = ["41:00.0", 7]')
    (tmp_path / "p.toml").write_text(text)
    loaded = load_profile("./p.toml", environ={}, cwd=tmp_path)
    assert [str(problem) for problem in loaded.host_problems("local", FACTS)] == snapshot(
        [
            "p.toml:25: decode.workers[0].numa_node 2 does not exist on host local; its NUMA nodes: 0, 1",
            "p.toml:24: decode.workers[0].gpus[0] 41:00.0 is the GPU that prefill.workers[0].gpus[1] names too; give each GPU to one worker",
            "p.toml:24: decode.workers[0].gpus[1] 7 does not exist on host local; its GPUs: 0 (00000000:01:00.0), 1 (00000000:41:00.0)",
        ]
    )
    assert loaded.host_problems("box", FACTS) == ()
