"""The real engine, started once for all tests that only talk to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import Dsv4, StackProfile, end_everything, single_profile, write_profile


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """A failed test may leave its stack; the next ones should not suffer from that."""
    yield
    end_everything()


@pytest.fixture(scope="session")
def dsv4(tmp_path_factory: pytest.TempPathFactory) -> Dsv4:
    """dsv4ctl with the state directory that the shared stacks live in."""
    return Dsv4(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests write their profiles."""
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="session")
def shared(dsv4: Dsv4, profiles: Path) -> Iterator[StackProfile]:
    """The disaggregated stack on the CPU, running and proven. A test that harms it uses a stack of its own."""
    profile = write_profile(profiles, "shared", more="[env]\nSGLANG_DSV4_ALLOW_HOLD = 1", large_tokens=6000)
    served = dsv4.invoke("serve", "--detach", profile.path)
    assert served.code == 0, served.err
    yield profile
    stopped = dsv4.invoke("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err


@pytest.fixture(scope="session")
def stack_url(shared: StackProfile) -> str:
    return shared.url


@pytest.fixture(scope="session")
def single_url(dsv4: Dsv4, profiles: Path) -> Iterator[str]:
    """One server without disaggregation, on the same model."""
    profile = single_profile(profiles, "single")
    served = dsv4.invoke("serve", "--detach", profile.path)
    assert served.code == 0, served.err
    yield profile.url
    stopped = dsv4.invoke("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
