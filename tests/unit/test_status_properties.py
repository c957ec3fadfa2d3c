"""A room that has failed or succeeded stays so, whatever the threads of an engine do, and in whatever order."""

from typing import Any

import pytest

from tests.engine_process import answer


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What breaks the rules with the SGLang that is installed."""
    return answer("status_properties")


def broken(found: dict[str, Any], arm: str) -> dict[str, dict[str, dict[str, str]]]:
    """By case and number of threads, the rules that an arm breaks, and how."""
    return {
        case: {threads: {rule: how for rule, how in rules.items() if how} for threads, rules in modes.items()}
        for case, modes in found[arm].items()
    }


def test_a_patched_room_ends_once_and_stays_so(found: dict[str, Any]) -> None:
    kept = broken(found, "patched")
    assert "CommonKVManager with pipeline stages" in kept
    assert all(not rules for modes in kept.values() for rules in modes.values()), kept


def test_the_installed_sglang_still_needs_the_patch(found: dict[str, Any]) -> None:
    """Without it two threads revive a failed room. Once this fails, look whether `sticky-status` is still needed."""
    stock = broken(found, "stock")
    for case, modes in stock.items():
        assert set(modes["two threads"]) >= {"failed_stays", "success_stays", "gone_stays"}, (case, modes)
