"""The overlapped loop and pages that are kept: what was retired once is not retired again."""

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)


def test_a_request_that_was_aborted_between_chunks_is_released_once() -> None:
    seen = answer("settle_overlap")
    answers = seen["aborted"]["answers"]
    assert seen["aborted"] == {"released": [], "settling": 1, "answers": answers}
    assert seen["computed"] == {"released": [], "settling": 1, "answers": answers}
    assert seen["sent"] == {"released": ["metadata", "kv"], "settling": 0, "holds": False}
