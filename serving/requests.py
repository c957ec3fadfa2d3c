"""Requests that end otherwise than SGLang has it: refused before they wait in vain, or aborted with an error."""

import math
import time
from http import HTTPStatus
from typing import Final

from serving.untyped import Untyped

_ABORTED: Final = "aborted by the operator of this engine: send the request again"

_ECHO_WITHIN_S: Final = 60.0
"""A scheduler that is in a long pass hears of an abort when that is over."""


def several_samples(_: object, request: Untyped) -> None:
    """After SGLang has read a request's arguments.

    Raises:
        ValueError: it asks for several samples of a prompt, which would all wait in one bootstrap room. SGLang answers
            it with status 400.
    """
    rooms = request.bootstrap_room if isinstance(request.bootstrap_room, list) else [request.bootstrap_room]
    if request.parallel_sample_num > 1 and any(room is not None for room in rooms):
        raise ValueError(
            f"n={request.parallel_sample_num} cannot be served with prefill and decode apart: each sample would need a "
            "transfer of its own; send the request that many times"
        )


def empty_prompt(_manager: object, request: Untyped, input_ids: list[int] | None) -> None:
    """Before SGLang checks the length of a prompt.

    Raises:
        ValueError: it has no token. A batch of none ends the scheduler, and with it the engine.
    """
    if input_ids is not None and len(input_ids) == 0 and request.input_embeds is None:
        raise ValueError("the prompt is empty: it has no token to begin with")


def abort_is_an_error(manager: Untyped, message: Untyped) -> None:
    """Before the HTTP process sends something to its scheduler: an abort of all requests makes each an error.

    A pause (of a trainer that updates weights) aborts all as well, and takes what was generated so far.
    """
    if type(message).__name__ == "AbortReq" and message.abort_all and not manager.is_pause:
        manager.dsv4_all_aborted_s = time.monotonic()
        _make_an_error_of(message)


def unexplained_abort(manager: Untyped, message: Untyped) -> None:
    """Before the HTTP process takes its scheduler's word that a request was aborted: why, where that is left out.

    SGLang passes the reason of an abort of all on, but for requests that decode has retracted and for one that is
    prefilled in chunks.
    """
    since_s = time.monotonic() - getattr(manager, "dsv4_all_aborted_s", -math.inf)
    if not message.finished_reason and since_s < _ECHO_WITHIN_S:
        _make_an_error_of(message)


def _make_an_error_of(message: Untyped) -> None:
    message.abort_message = _ABORTED
    message.finished_reason = {
        "type": "abort",
        "message": _ABORTED,
        "status_code": HTTPStatus.SERVICE_UNAVAILABLE.value,
        "err_type": "ServiceUnavailable",
    }
