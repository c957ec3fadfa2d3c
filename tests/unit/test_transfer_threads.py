"""The threads that all transfers hang on outlive one bad message or chunk; without the patches they do not."""

from typing import Any

import pytest

from tests.engine_process import answer

pytestmark = pytest.mark.timeout(600)  # ten seconds of imports, on a busy machine minutes

HARMLESS = {"nothing", "an abort", "an abort without a room"}
"""What the installed SGLang deals with by itself."""


def outcomes(arm: str) -> dict[str, dict[str, bool]]:
    """By thread and by what came first: whether it still did its work."""
    said: dict[str, Any] = answer("transfer_threads", arm)
    return {thread: works for thread, works in said.items() if thread != "sglang"}


def test_every_thread_outlives_what_it_cannot_deal_with() -> None:
    patched = outcomes("patched")
    assert len(patched) == 4
    assert all(all(works.values()) for works in patched.values()), patched


def test_the_installed_sglang_still_needs_the_patches() -> None:
    """Once this fails, look whether `control-threads` and `transfer-worker` are still needed."""
    stock = outcomes("stock")
    assert all(works == (name in HARMLESS) for group in stock.values() for name, works in group.items()), stock
