"""`dsv4ctl doctor --deep` with real writes: both sides here, and the destination over SSH."""

import sys
from dataclasses import replace
from pathlib import Path

from dsv4ctl.doctor.deep.conduct import Limits, run_deep
from dsv4ctl.doctor.deep.judge import findings_of
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.hosts.ssh import SshHost
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, Stack, build_stack
from tests.sshd import free_port

ROOT = Path(__file__).parents[2]
LIMITS = Limits(sizes_bytes=(4096, 1 << 20), join_within_s=20.0, within_s=30.0)


def stack(tmp_path: Path) -> Stack:
    """The cpu profile; its interpreter finds this checkout wherever it is started."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    loaded = load_profile("cpu", sets=(f"env.PYTHONPATH={ROOT}",), environ={}, cwd=tmp_path)
    return build_stack(loaded, {"local": Site(str(python), str(tmp_path), str(tmp_path), str(tmp_path))})


def test_both_sides_here(tmp_path: Path) -> None:
    report = run_deep(stack(tmp_path), {"local": LocalHost()}, limits=LIMITS)
    assert findings_of(report) == ()
    (pairing,) = report.pairings
    assert [pair.lane for pair in pairing.pairs] == [("tcp/lo",)]
    assert pairing.pairs[0].gb_per_s.keys() == {4096, 1 << 20}


def test_the_destination_over_ssh(tmp_path: Path, remote: SshHost) -> None:
    planned = stack(tmp_path)
    prefill, decode, _ = planned.workers
    prefill = replace(prefill, listen="127.0.0.2", ports={"bootstrap": free_port()})
    apart = replace(planned, workers=(prefill, replace(decode, host="other")))
    report = run_deep(apart, {"local": LocalHost(), "other": remote}, limits=LIMITS)
    assert findings_of(report) == ()
    (pairing,) = report.pairings
    assert pairing.bulk.keys() == {(0, 0)}
