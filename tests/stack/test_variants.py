"""The variants of the CPU profile come up, prove themselves, answer rightly, end a pinned request, and go.

Pipelines and Mooncake: tests/soak/test_variants.py.
"""

from pathlib import Path

import pytest

from tests.variants import check_variant

pytestmark = [pytest.mark.stack, pytest.mark.beside, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("extends", "prefill", "decode"), [("cpu-tp2", 1, 1), ("cpu-2p2d", 2, 2), ("cpu-overlap", 1, 1)]
)
def test_the_variant_serves(extends: str, prefill: int, decode: int, tmp_path: Path) -> None:
    check_variant(extends, prefill, decode, tmp_path)
