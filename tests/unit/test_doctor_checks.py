"""Each check of `dsv4ctl doctor`: where it fires and where it does not, on recorded boxes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4ctl.doctor.box import Patient
from dsv4ctl.doctor.check import all_checks, examine
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, build_stack
from tests.boxes import Recorded, healthy, look, nvidia_smi

CHECKS = all_checks()


def findings_on(box: Recorded) -> tuple[Finding, ...]:
    return examine(CHECKS, patient_of(box))


def patient_of(box: Recorded) -> Patient:
    loaded = load_profile("rtx-pro-6000-8x", environ={}, cwd=box.root)
    stack = build_stack(loaded, {"local": Site("/opt/engine/bin/python", "/var/lib/dsv4ctl", "/home/o", "/tmp/d")})
    return Patient("local", look(box, CHECKS), loaded.profile, stack.workers)


def test_a_healthy_box_has_nothing(tmp_path: Path) -> None:
    assert findings_on(healthy(tmp_path)) == ()


def narrow_link(box: Recorded) -> None:
    box.write("recorded/gpus", nvidia_smi(lanes=8)["gpus"])


def small_bar1(box: Recorded) -> None:
    box.write("recorded/bar1", nvidia_smi(bar1_mib=256)["bar1"])


BROKEN: dict[str, Callable[[Recorded], None]] = {"PCIE_LINK_NARROW": narrow_link, "BAR1_SMALL": small_bar1}


def test_every_check_has_a_broken_box() -> None:
    assert sorted(BROKEN) == [check.code for check in CHECKS]


@pytest.mark.parametrize("code", BROKEN)
def test_a_box_that_is_broken_in_one_way_has_that_finding_alone(code: str, tmp_path: Path) -> None:
    box = healthy(tmp_path)
    BROKEN[code](box)
    assert {finding.code for finding in findings_on(box)} == {code}


def test_what_cannot_be_looked_at_is_unknown_and_never_well(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("nvidia-smi", 'echo "NVIDIA-SMI has failed" >&2; exit 9')
    found = [finding for finding in findings_on(box) if finding.code == "PCIE_LINK_NARROW"]
    assert [finding.severity for finding in found] == [Severity.UNKNOWN]
    assert "NVIDIA-SMI has failed" in found[0].message
