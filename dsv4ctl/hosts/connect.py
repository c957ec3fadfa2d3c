"""A host by its name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host

LOCAL = "local"


def open_host(name: str) -> "Host":
    """`local` is this machine; every other name is one that ssh knows. Nothing is connected before the first call.

    The environment variable DSV4CTL_SSH_CONFIG may name an ssh configuration to use instead of the person's own.
    """
    if name == LOCAL:
        from dsv4ctl.hosts.local import LocalHost

        return LocalHost()
    from dsv4ctl.hosts.ssh import SshHost

    return SshHost(name)
