"""An abort of everything tells SGLang to make an error of each request; other messages pass as they are."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from serving.requests import abort_is_an_error, unexplained_abort


@dataclass
class AbortReq:
    """SGLang's message of that name, which only an engine's process can import."""

    rid: str
    abort_all: bool = False
    abort_message: str | None = None
    finished_reason: dict[str, object] | None = None


SERVING = SimpleNamespace(is_pause=False)


def test_an_abort_of_all_carries_an_error() -> None:
    message = AbortReq(rid="", abort_all=True)
    abort_is_an_error(SERVING, message)
    assert message.abort_message is not None
    assert "send the request again" in message.abort_message
    assert message.finished_reason is not None
    assert message.finished_reason["status_code"] == 503


@pytest.mark.parametrize(
    ("manager", "message"),
    [
        (SERVING, AbortReq(rid="a")),
        (SimpleNamespace(is_pause=True), AbortReq(rid="", abort_all=True)),
    ],
)
def test_a_single_abort_and_one_of_a_pause_stay_as_they_are(manager: SimpleNamespace, message: AbortReq) -> None:
    abort_is_an_error(manager, message)
    assert message.abort_message is None
    assert message.finished_reason is None


def test_what_is_no_abort_passes() -> None:
    message = SimpleNamespace(rid="a", abort_all=True)
    abort_is_an_error(SERVING, message)
    assert vars(message) == {"rid": "a", "abort_all": True}


def test_a_scheduler_that_leaves_the_reason_out_has_it_filled_in_after_an_abort_of_all_alone() -> None:
    manager = SimpleNamespace(is_pause=False)
    before = AbortReq(rid="a")
    unexplained_abort(manager, before)
    assert before.finished_reason is None
    abort_is_an_error(manager, AbortReq(rid="", abort_all=True))
    retracted, explained = AbortReq(rid="b"), AbortReq(rid="c", finished_reason={"type": "abort", "message": "own"})
    unexplained_abort(manager, retracted)
    unexplained_abort(manager, explained)
    assert retracted.finished_reason is not None
    assert retracted.finished_reason["status_code"] == 503
    assert explained.finished_reason == {"type": "abort", "message": "own"}
