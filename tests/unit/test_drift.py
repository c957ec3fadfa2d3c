"""Drift is read from a real process: what it was started with against what was planned."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dsv4ctl.drift import drift_of
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.procfs import cmdline
from dsv4ctl.redaction import redact_argv, redact_env
from dsv4ctl.state import WorkerRecord
from dsv4ctl.waiting import wait_until

SLEEP = ("-c", "import time; time.sleep(60)")


@contextmanager
def process(*argv: str, env: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(argv, env=env) as child:
        try:
            # Between exec and its first instruction a process shows no arguments and no environment.
            wait_until(lambda: cmdline(LocalHost(), child.pid), deadline_s=10, what="the process to show its arguments")
            yield child.pid
        finally:
            child.kill()


def record(argv: tuple[str, ...], env: dict[str, str]) -> WorkerRecord:
    return WorkerRecord("prefill-0", "prefill", "u", "127.0.0.1", 1, {"http": 1}, argv, env)


def test_a_process_that_runs_as_planned_has_no_drift() -> None:
    with process(sys.executable, *SLEEP, env={"A": "1", "PATH": "/bin"}) as pid:
        assert drift_of(LocalHost(), pid, record(("python3", *SLEEP), {"A": "1"})) == ()


def test_numactl_replaces_itself_and_is_no_drift() -> None:
    with process(sys.executable, *SLEEP, env={}) as pid:
        planned = ("numactl", "--cpunodebind=0", "--membind=0", "python3", *SLEEP)
        assert drift_of(LocalHost(), pid, record(planned, {})) == ()


def test_every_difference_is_named_with_both_sides() -> None:
    with process(sys.executable, *SLEEP, env={"A": "2"}) as pid:
        drifts = drift_of(LocalHost(), pid, record(("python3", "-c", "other"), {"A": "1", "B": ""}))
    assert [drift.what for drift in drifts] == ["A", "B", "command line"]
    assert str(drifts[0]) == "A: planned '1', running '2'"
    assert str(drifts[1]) == "B: planned '', running not set"


SECRETS = {"MY_PASSWD": "hunter2", "DATABASE_URL": "postgres://bob:hunter22@db/x", "HF_TOKEN": "hunter3"}
WITH_SECRETS = (*SLEEP, "--api-key", "letmein-1", "--proxy=http://u:hunter22@p")


def test_a_process_with_the_secrets_that_were_planned_has_no_drift() -> None:
    argv = redact_argv(("python3", *WITH_SECRETS))
    with process(sys.executable, *WITH_SECRETS, env=SECRETS) as pid:
        assert drift_of(LocalHost(), pid, record(argv, redact_env(SECRETS))) == ()
        # A version that knew fewer secrets kept them clear: they are the same, and are not shown where they are not.
        assert drift_of(LocalHost(), pid, record(("python3", *WITH_SECRETS), SECRETS)) == ()
        others = {"MY_PASSWD": "hunter9", "DATABASE_URL": "postgres://bob:hunter99@db/x"}
        drifts = drift_of(LocalHost(), pid, record(("python3", *WITH_SECRETS, "--x"), others))
    assert [drift.what for drift in drifts] == ["MY_PASSWD", "DATABASE_URL", "command line"]
    assert "postgres://bob:<redacted" in str(drifts)
    assert not [secret for secret in ("hunter", "letmein") if secret in str(drifts)]
