"""A real systemd user manager for tests, on a machine that was not booted with systemd.

It runs in mount and cgroup namespaces of its own: a tmpfs on /run with the directory that says "systemd is here", and a
cgroup of ours as the root of the cgroup tree, laid out as on a booted machine, because the journal takes a message's
unit from the path of the sender's cgroup. A journal daemon runs beside it. A test enters these namespaces with its own
thread, so the code under test, and every process it starts, runs unchanged and finds that manager.

Needs root, cgroup v2 (the hybrid layout too) and Debian's `systemd` package.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv4ctl.waiting import wait_until

CLONE_FS, CLONE_NEWNS, CLONE_NEWCGROUP = 0x00000200, 0x00020000, 0x02000000
SYSTEMD = Path("/lib/systemd/systemd")
JOURNALD = Path("/lib/systemd/systemd-journald")

_SETUP = """
set -e
home=$1
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/systemd/journald.conf.d /run/log/journal
mkdir -p -m 700 /run/user/0
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\n' >/run/systemd/journald.conf.d/test.conf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
manager=/sys/fs/cgroup/user.slice/user-0.slice/user@0.service/init.scope
journal=/sys/fs/cgroup/system.slice/systemd-journald.service
mkdir -p $manager $journal
sh -c "echo \\$\\$ >$journal/cgroup.procs; exec /lib/systemd/systemd-journald" &
echo $$ >$manager/cgroup.procs
exec env -i HOME="$home" PATH=/usr/bin:/bin USER=root LOGNAME=root SHELL=/bin/sh XDG_RUNTIME_DIR=/run/user/0 \\
    MANAGER_ONLY=leaks /lib/systemd/systemd --user --unit=basic.target
"""


@dataclass(frozen=True)
class UserManager:
    """A running user manager. `home` is its HOME: unit files go to `.config/systemd/user` there."""

    pid: int
    home: Path

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While entered, this thread and what it starts see the manager, and only it: its /run, its cgroups."""
        libc = ctypes.CDLL(None, use_errno=True)
        spaces = (("mnt", CLONE_NEWNS), ("cgroup", CLONE_NEWCGROUP))
        before = Path.cwd()
        own = [os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY) for name, _ in spaces]
        theirs = [os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY) for name, _ in spaces]

        def enter(descriptors: list[int]) -> None:
            # A thread may change its mount namespace only when it shares its working directory with no other thread;
            # those it has started since share it again.
            _checked(libc.unshare(CLONE_FS))
            for descriptor, (_, kind) in zip(descriptors, spaces, strict=True):
                _checked(libc.setns(descriptor, kind))
            os.chdir(before)

        try:
            enter(theirs)
            yield
        finally:
            enter(own)
            for descriptor in own + theirs:
                os.close(descriptor)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unavailable() -> str | None:
    """Why this machine cannot run a user manager for tests, or None."""
    if os.geteuid() != 0:
        return "only root can make the namespaces for a systemd user manager"
    if not (SYSTEMD.exists() and JOURNALD.exists() and shutil.which("systemd-run")):
        return "the systemd package is not installed"
    if _cgroup_mount() is None:
        return "no cgroup v2 is mounted"
    return None


def _cgroup_mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if source.startswith("cgroup2 "):
            return Path(fields.split()[4])
    return None


@contextmanager
def running(home: Path) -> Iterator[UserManager]:
    """A user manager with a journal, until the end of the block; then every process of it is gone."""
    mount = _cgroup_mount()
    assert mount is not None
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    cgroup = Path(tempfile.mkdtemp(prefix="dsv4-test-", dir=mount / own.removeprefix("0::").lstrip("/")))
    script = f'echo $$ >{cgroup}/cgroup.procs; exec unshare --mount --cgroup sh -c "$1" sh "$2"'
    log = (home / "manager.log").open("wb")
    with log, subprocess.Popen(["sh", "-c", script, "sh", _SETUP, str(home)], stdout=log, stderr=log) as process:
        manager = UserManager(process.pid, home)
        try:
            wait_until(lambda: _answers(manager, process), deadline_s=20, what="the systemd user manager")
            yield manager
        finally:
            process.kill()
            (cgroup / "cgroup.kill").write_text("1")
            wait_until(lambda: _removed(cgroup), deadline_s=10, what=f"the end of {cgroup}")


def _answers(manager: UserManager, process: "subprocess.Popen[bytes]") -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the manager ended with {process.returncode}: see {manager.home}/manager.log")
    if Path(f"/proc/{manager.pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
        return False  # it has not left our namespaces yet, where another manager may answer
    with manager.entered():
        asked = subprocess.run(
            ["systemctl", "--user", "is-system-running"],
            env={**os.environ, "XDG_RUNTIME_DIR": "/run/user/0"},
            capture_output=True,
            check=False,
        )
        return asked.stdout.strip() == b"running" and Path("/run/systemd/journal/stdout").exists()


def _removed(cgroup: Path) -> bool:
    """Remove the tree of empty cgroups; False while something still is in it."""
    try:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            Path(directory).rmdir()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def user_manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserManager]:
    """One user manager for all tests that enter it."""
    if reason := unavailable():
        pytest.skip(reason)
    with running(tmp_path_factory.mktemp("systemd")) as manager:
        yield manager


@pytest.fixture
def in_user_manager(user_manager: UserManager, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserManager]:
    """This test runs where `systemctl --user` reaches the test's own manager."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0")
    with user_manager.entered():
        yield user_manager
