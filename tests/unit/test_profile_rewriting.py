"""A value written into a profile's file: where it goes, what is refused, and that nothing else is touched."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from dsv4ctl.errors import OperationFailed, Refused, UsageError
from dsv4ctl.profile.loading import load_found
from dsv4ctl.profile.lookup import Found, builtin_dir, builtin_profiles
from dsv4ctl.profile.rewriting import Rewrite, put_back, set_value, spelling, write
from dsv4ctl.profile.schema import Role

T = "SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT"

HEAD = """\
extends = "cpu"
name = "mine" # as the box is called
"""


def found(path: Path) -> Found:
    return Found(path, path.name, "the test")


def put(path: Path, text: str, value: float | None = 15, *, sets: Sequence[str] = ()) -> Rewrite:
    path.write_bytes(text.encode())
    return set_value(found(path), T, value, role=Role.PREFILL, cwd=path.parent, sets=sets)


def lines(rewrite: Rewrite) -> list[str]:
    """What is changed, without the diff's own lines."""
    return [line for line in rewrite.diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def in_force(rewrite: Rewrite) -> list[str]:
    loaded = load_found(found(rewrite.path), cwd=rewrite.path.parent, text=rewrite.after_text)
    prefills = [worker for worker in loaded.profile.workers if worker.role is Role.PREFILL]
    return [loaded.worker_env(worker)[T].value for worker in prefills]


def check_undone(rewrite: Rewrite) -> None:
    rewrite.path.write_bytes(rewrite.after_text.encode())
    back = put_back(found(rewrite.path), rewrite.changes, cwd=rewrite.path.parent)
    assert (back.before_text, back.after_text) == (rewrite.after_text, rewrite.before_text)


WORKERS = """
[[prefill.workers]]
port = 30100
bootstrap_port = 8998

[[prefill.workers]]
port = 30101
bootstrap_port = 8999
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}[env]\n{T} = 60 # a minute\n", [f"-{T} = 60 # a minute", f"+{T} = 15 # a minute"]),
        (f"{HEAD}[prefill]\nenv.{T}= '60'\n", [f"-env.{T}= '60'", f"+env.{T}= 15"]),
        (f"{HEAD}prefill.env = {{ {T} = 60 }}\n", [f"-prefill.env = {{ {T} = 60 }}", f"+prefill.env = {{ {T} = 15 }}"]),
        (f"{HEAD}\n[env]\n{T} = 60\n[prefill.env]\n{T} = 90\n", [f"-{T} = 90", f"+{T} = 15"]),
        (HEAD, ["+", "+[prefill.env]", f"+{T} = 15"]),
        (f"{HEAD}{WORKERS}", ["+", "+[prefill.env]", f"+{T} = 15"]),
        (
            f"{HEAD}\n[env]\nA = 1\n# Prefill has two\n[[prefill.workers]]\nport=1\nbootstrap_port=2\n",
            ["+", "+[prefill.env]", f"+{T} = 15", "+"],
        ),
        (f"{HEAD}[prefill.env]\n  A = 1 # one\n\n[args]\n", [f"+  {T} = 15"]),
        (f"{HEAD}[prefill.env]\n\n[args]\n", [f"+{T} = 15"]),
        (f"{HEAD}prefill.env.A = 1\n[args]\n", [f"+prefill.env.{T} = 15"]),
        (f"{HEAD}[prefill]\nenv.A = 1\nargs.a = 1\n", [f"+env.{T} = 15"]),
        (
            f"{HEAD}[prefill]\nenv = {{ A = 1 }} # x\n",
            ["-env = { A = 1 } # x", f"+env = {{ A = 1, {T} = 15 }} # x"],
        ),
        (
            f"{HEAD}prefill = {{args = {{a=1}}}}\n",
            ["-prefill = {args = {a=1}}", f"+prefill = {{args = {{a=1}}, env.{T} = 15}}"],
        ),
        (f"{HEAD}[prefill]\nargs.a = 1", ["+", "+[prefill.env]", f"+{T} = 15", "+"]),
        (f"{HEAD}[decode]\nargs.a = 1", ["+", "+[prefill.env]", f"+{T} = 15"]),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_where_the_value_goes(tmp_path: Path, text: str, expected: list[str], ends: str) -> None:
    rewrite = put(tmp_path / "p.toml", text.replace("\n", ends))
    assert lines(rewrite) == expected
    assert set(in_force(rewrite)) == {"15"}
    assert rewrite.after_text.count("\r") == (rewrite.after_text.count("\n") if ends == "\r\n" else 0)
    check_undone(rewrite)


def test_every_worker_that_has_its_own_value_gets_it(tmp_path: Path) -> None:
    text = f"""{HEAD}
[[prefill.workers]]
port = 30100
bootstrap_port = 8998
env = {{ {T} = 60 }}

[[prefill.workers]]
port = 30101
bootstrap_port = 8999
[prefill.workers.env]
{T} = 0x5A

[[prefill.workers]]
port = 30102
bootstrap_port = 9000

[prefill.env]
{T} = 45
"""
    rewrite = put(tmp_path / "p.toml", text)
    assert [(change.key[-3], change.before) for change in rewrite.changes] == [
        (0, "60"),
        (1, "0x5A"),
        ("prefill", "45"),
    ]
    assert in_force(rewrite) == ["15", "15", "15"]
    check_undone(rewrite)


def test_a_file_that_extends_another_gets_the_roles_own(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(f'extends = "cpu"\n[prefill.env]\n{T} = 60\n')
    rewrite = put(tmp_path / "p.toml", f'extends = "base.toml"\n[env]\n{T} = 30\n')
    assert lines(rewrite) == ["+", "+[prefill.env]", f"+{T} = 15"]
    assert in_force(rewrite) == ["15"]


def test_what_a_worker_of_another_file_has_cannot_be_changed_here(tmp_path: Path) -> None:
    worker = f'extends = "cpu"\n[[prefill.workers]]\nport = 1\nbootstrap_port = 2\nenv.{T} = 60\n'
    (tmp_path / "base.toml").write_text(worker)
    with pytest.raises(Refused) as caught:
        put(tmp_path / "p.toml", 'extends = "base.toml"\n')
    assert (caught.value.what, caught.value.why) == snapshot(
        (
            "prefill-0 would still have SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT = 60",
            "base.toml:5 prefill.workers[0].env.SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT decides it, and not p.toml",
        )
    )


def test_what_lies_on_top_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--set prefill"):
        put(tmp_path / "p.toml", HEAD, sets=[f"prefill.{T}=60"])
    with pytest.raises(Refused, match="--unset takes it out"):
        put(tmp_path / "p.toml", HEAD, sets=[f"-{T}"])


def test_a_value_that_is_there_already_is_left_as_it_is_spelt(tmp_path: Path) -> None:
    rewrite = put(tmp_path / "p.toml", f'{HEAD}[env]\n{T} = "15"\n')
    assert (rewrite.changes, rewrite.diff, rewrite.before_text) == ((), (), rewrite.after_text)


def test_numbers_are_spelt_as_a_profile_takes_them() -> None:
    assert [spelling(value) for value in (15.0, 15, 2.5, 0)] == ["15", "15", '"2.5"', "0"]
    with pytest.raises(UsageError):
        spelling(float("inf"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}\n[prefill.env]\n{T} = 15\n", HEAD),
        (f"{HEAD}\n[prefill.env]\n{T} = 15\n\n[args]\na = 1\n", f"{HEAD}\n[args]\na = 1\n"),
        (f"{HEAD}\n[prefill.env]\n{T} = 15\nA = 1\n", f"{HEAD}\n[prefill.env]\nA = 1\n"),
        (f"{HEAD}\n[prefill.env]\n# kept\n{T} = 15\n", f"{HEAD}\n[prefill.env]\n# kept\n"),
        (f"{HEAD}\n[prefill.env]\n{T} = 15\n# kept\n", f"{HEAD}\n[prefill.env]\n# kept\n"),
        (f"{HEAD}prefill.env = {{ A = 1, B = 2, {T} = 15 }}\n", f"{HEAD}prefill.env = {{ A = 1, B = 2 }}\n"),
        (f"{HEAD}prefill.env.{T} = 15\n", HEAD),
        (HEAD, HEAD),
    ],
)
def test_a_value_is_taken_out_with_a_table_that_has_nothing_else(tmp_path: Path, text: str, expected: str) -> None:
    assert put(tmp_path / "p.toml", text, None).after_text == expected


@pytest.mark.parametrize("name", ["cpu", "cpu-2p2d", "cpu-mooncake", "rtx-pro-6000-8x", "rtx-pro-6000-4x"])
def test_a_copy_of_each_profile_gets_it_and_gives_it_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.toml"
    rewrite = put(path, builtin_profiles()[name].read_text())
    assert set(in_force(rewrite)) == {"15"}
    gone = [line for line in lines(rewrite) if line.startswith("-")]
    assert gone in ([], [f"-{T} = 60"])
    assert all(T in line or line in ("+", "+[prefill.env]") for line in lines(rewrite))
    check_undone(rewrite)
    by_value = set_value(found(path), T, 60 if gone else None, role=Role.PREFILL, cwd=tmp_path)
    assert by_value.after_text == rewrite.before_text


def test_a_built_in_profile_is_not_written_and_the_lines_that_do_it_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4ctl.profile.rewriting.user_dir", lambda: Path("/home/me/.config/dsv4ctl/profiles"))
    built_in = Found(builtin_dir() / "cpu-2p2d.toml", "profiles/cpu-2p2d.toml", "the test")
    with pytest.raises(Refused) as caught:
        set_value(built_in, T, 15, role=Role.PREFILL, cwd=tmp_path)
    assert caught.value.hint == snapshot(
        """\
/home/me/.config/dsv4ctl/profiles/cpu-2p2d.toml is used in its place if it holds:

extends = "cpu-2p2d"

[prefill.env]
SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT = 15
"""
    )
    with pytest.raises(Refused):
        set_value(built_in, T, None, role=Role.PREFILL, cwd=tmp_path)


def test_a_profile_without_the_role_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no prefill worker"):
        put(tmp_path / "p.toml", 'extends = "cpu-single"\n')


def test_what_was_changed_since_is_not_put_back(tmp_path: Path) -> None:
    rewrite = put(tmp_path / "p.toml", f"{HEAD}[env]\n{T} = 60\n")
    rewrite.path.write_text(rewrite.after_text.replace("15", "20"))
    with pytest.raises(Refused, match="is 20, and not 15"):
        put_back(found(rewrite.path), rewrite.changes, cwd=tmp_path)


def test_what_was_done_to_the_file_since_stays(tmp_path: Path) -> None:
    rewrite = put(tmp_path / "p.toml", HEAD)
    rewrite.path.write_text(f"{rewrite.after_text}A = 1\n[args]\na = 1\n")
    back = put_back(found(rewrite.path), rewrite.changes, cwd=tmp_path)
    assert back.after_text == f"{HEAD}\n[prefill.env]\nA = 1\n[args]\na = 1\n"


def test_the_file_is_replaced_and_keeps_its_mode_and_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    rewrite = put(path, f"\ufeff{HEAD}[env]\n{T} = 60\n")
    path.chmod(0o640)
    write(rewrite)
    assert path.read_bytes().decode() == f"\ufeff{HEAD}[env]\n{T} = 15\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["p.toml"]


def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.toml").write_text('extends = "cpu"\n')
    target = tmp_path / "real.toml"
    link = tmp_path / "sub" / "p.toml"
    link.symlink_to("../real.toml")
    # Relative to the link, as the loader has it.
    rewrite = put(link, f'extends = "base.toml"\n[env]\n{T} = 60\n')
    assert rewrite.where == f"{link} (a link to {target})"
    write(rewrite)
    assert link.is_symlink()
    assert f"{T} = 15" in target.read_text()


def test_a_file_that_was_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    rewrite = put(path, HEAD)
    path.write_text("# mine\n")
    with pytest.raises(Refused, match=r"p\.toml is not written: it was changed meanwhile"):
        write(rewrite)
    assert path.read_text() == "# mine\n"
    assert [one.name for one in tmp_path.iterdir()] == ["p.toml"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.toml"
    rewrite = put(path, HEAD)

    def refuse(*_: object) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(OperationFailed, match=r"cannot write .*p\.toml: Operation not permitted"):
        write(rewrite)
    assert path.read_text() == HEAD
    assert [one.name for one in tmp_path.iterdir()] == ["p.toml"]
