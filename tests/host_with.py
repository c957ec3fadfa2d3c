"""This machine with other programs on its PATH, as a host that questions are put to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.local import LocalHost

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostWith(LocalHost):
    """The programs in a directory before the machine's own, and more variables if need be."""

    def __init__(self, programs: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._env = {"PATH": f"{programs}:{_SYSTEM_PATH}", **(env or {})}

    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        """As on any host."""
        return super().run(argv, **{**how, "env": {**(how.get("env") or {}), **self._env}})
