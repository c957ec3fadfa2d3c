"""The variants that tests/stack/test_variants.py leaves out."""

from pathlib import Path

import pytest

from tests.variants import check_variant

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]


@pytest.mark.parametrize("extends", ["cpu-pp2", "cpu-mooncake"])
def test_the_variant_serves(extends: str, tmp_path: Path) -> None:
    check_variant(extends, 1, 1, tmp_path)
