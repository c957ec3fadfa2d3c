"""The second lane: SGLang 0.5.15, in an environment of its own. Only `make test-older` makes that, and runs this."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import end_everything

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this lane out of a run that does not name it: it needs what `make install-dev` does not install."""
    named = any(Path(argument.partition("::")[0]).absolute().is_relative_to(HERE) for argument in config.args)
    return None if named else True


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """A failed test may leave its stack; the next ones should not suffer from that."""
    yield
    end_everything()
