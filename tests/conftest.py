"""Fixtures that more than one package of tests uses."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.sshd import SshNet, ssh_net
from tests.systemd import in_user_manager, user_manager

__all__ = ["in_user_manager", "user_manager"]

# How long an example takes says more of what else the machine does than of the code.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """On the machine that decides, a skipped test is a test that was not run, and that is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped") and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshNet]:
    """A real sshd, a second one in front of it, and the ssh_config of somebody who may use both."""
    with ssh_net(tmp_path_factory.mktemp("ssh")) as started:
        yield started
