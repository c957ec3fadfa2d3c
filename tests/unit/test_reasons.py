"""The rank that answers knows why a transfer failed, if any rank knows."""

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)

FAILED, TRANSFERRING = 0, 3
AGREED = [FAILED, FAILED, FAILED, TRANSFERRING, FAILED]


def test_the_first_rank_learns_what_another_was_told() -> None:
    seen = answer("reasons_of_ranks")
    assert [rank["polls"] for arm in seen.values() for rank in arm.values()] == [AGREED] * 4
    assert seen["stock"]["0"]["known"] == {"1": "of the first"}
    assert seen["patched"]["0"]["known"] == {"1": "of the first", "2": "of the second"}
    told = {"1": "of the second", "2": "of the second"}
    assert seen["stock"]["1"]["known"] == seen["patched"]["1"]["known"] == told
