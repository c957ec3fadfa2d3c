"""A room that has failed or succeeded stays so, whatever the threads of an engine do, and in whatever order."""

from typing import Any

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What breaks the rules with the SGLang that is installed."""
    return answer("status_properties")


def test_a_patched_room_ends_once_and_stays_so(found: dict[str, Any]) -> None:
    patched = found["patched"]
    assert "CommonKVManager with pipeline stages" in patched
    assert [how for modes in patched.values() for how in modes.values() if how] == []


def test_without_the_patch_an_interrupted_thread_revives_a_failed_room(found: dict[str, Any]) -> None:
    """Once this fails, look whether `sticky-status` is still needed."""
    for case, modes in found["stock"].items():
        broken = {rule for rule, how in modes["three threads"].items() if how}
        assert broken >= {"failed_stays", "success_stays", "gone_stays"}, case
