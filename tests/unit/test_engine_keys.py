"""The key of an engine: found in the command line that its process has, and never in the record."""

from types import SimpleNamespace
from typing import Any

import pytest

from dsv4ctl import engine_keys
from dsv4ctl.engine_keys import headers_by, headers_of, keys_of
from dsv4ctl.errors import CannotLook

HANDLE = object()


def place(pid: int | None) -> Any:
    supervisor = SimpleNamespace(status=lambda _: SimpleNamespace(main_pid=pid))
    return SimpleNamespace(supervisor=supervisor, host=object())


def record(*argv: str, handle: object = HANDLE) -> Any:
    return SimpleNamespace(name="prefill-0", argv=argv, handle=handle)


def test_a_key_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_keys, "cmdline", lambda _, pid: ("python", "--api-key=real", f"{pid}"))
    assert keys_of(place(7), record("python", "--api-key", "sha256:1234"), "--api-key") == {
        "Authorization": "Bearer real"
    }


@pytest.mark.parametrize(("pid", "worker"), [(7, record("python")), (7, record("--api-key", "x", handle=None))])
def test_an_engine_without_one_is_not_looked_into(pid: int, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_keys, "cmdline", lambda *_: pytest.fail("it was looked into"))
    assert keys_of(place(pid), worker, "--api-key") == {}


def test_a_process_that_is_gone_has_none() -> None:
    assert keys_of(place(None), record("--api-key", "x"), "--api-key") == {}


def test_a_process_of_somebody_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> tuple[str, ...]:
        raise PermissionError("not yours")

    monkeypatch.setattr(engine_keys, "cmdline", denied)
    with pytest.raises(CannotLook, match="the --api-key of prefill-0 cannot be read"):
        keys_of(place(7), record("--api-key", "x"), "--api-key")


def test_what_a_request_carries() -> None:
    assert headers_by(("python", "--api-key", "k")) == {"Authorization": "Bearer k"}
    assert headers_by(("python",)) == headers_of(None) == {}
