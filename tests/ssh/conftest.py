"""Hosts of every kind, opened once for all tests that leave them as they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4ctl.hosts.base import Host
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.hosts.ssh import SshHost
from tests.sshd import SshNet
from tests.web import Web, serve_web


@pytest.fixture(scope="session", params=["local", "direct", "via-hop"])
def host(request: pytest.FixtureRequest, net: SshNet) -> Iterator[Host]:
    """This machine, the same over SSH, and the same again through a jump host."""
    opened = LocalHost() if request.param == "local" else SshHost(request.param, config_file=str(net.config))
    yield opened
    opened.close()


@pytest.fixture
def remote(net: SshNet) -> Iterator[SshHost]:
    """A host over SSH for one test alone."""
    opened = SshHost("direct", config_file=str(net.config))
    yield opened
    opened.close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """An HTTP server on the loopback that counts its connections."""
    with serve_web() as started:
        yield started
