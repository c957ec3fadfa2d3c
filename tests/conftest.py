"""Fixtures that more than one package of tests uses."""

from collections.abc import Iterator

import pytest

from tests.sshd import SshNet, ssh_net
from tests.systemd import in_user_manager, user_manager

__all__ = ["in_user_manager", "user_manager"]


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshNet]:
    """A real sshd, a second one in front of it, and the ssh_config of somebody who may use both."""
    with ssh_net(tmp_path_factory.mktemp("ssh")) as started:
        yield started
