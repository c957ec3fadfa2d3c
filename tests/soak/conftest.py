"""What takes minutes to hours of a running stack: `make bench` runs it, and `make test` does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import end_everything

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave it out of a run that does not name it."""
    named = any(Path(argument.partition("::")[0]).absolute().is_relative_to(HERE) for argument in config.args)
    return None if named else True


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """A failed test may leave its stack; the next ones should not suffer from that."""
    yield
    end_everything()
