"""Plans for recorded boxes, and what the checks of `dsv4ctl doctor` say of the two together."""

from collections.abc import Sequence
from pathlib import Path

from dsv4ctl.doctor.box import Box, Patient
from dsv4ctl.doctor.check import all_checks, examine
from dsv4ctl.facts import GpuFact
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, build_stack, hosts_of
from tests.boxes import HOME, Recorded, cards, look

CHECKS = all_checks()
EIGHT_CARDS = """
schema_version = 1
name = "eight-cards"
description = "Prefill on the four cards of one socket, decode on those of the other"
supervisor = "systemd"
engine.version = "0.5.23"
engine.python = "/opt/engine/bin/python"
model.path = "/models/DeepSeek-V4-Flash-NVFP4"
model.served_name = "deepseek-v4-flash"
env.SGLANG_DISAGGREGATION_NIXL_BACKEND = "UCX"
args.tp-size = 4
router.port = 30000

[prefill]
args.disaggregation-transfer-backend = "nixl"
workers = [{ port = 30100, bootstrap_port = 8998, gpus = [0, 1, 2, 3], numa_node = 0 }]

[decode]
args.disaggregation-transfer-backend = "nixl"
workers = [{ port = 30200, gpus = [4, 5, 6, 7], numa_node = 1 }]
"""
TWO_HOSTS = """
extends = "eight-cards.toml"
name = "two-hosts"
description = "Prefill here, decode elsewhere"
hosts.other.ssh = "other"
prefill.workers = [{ listen = "10.0.0.1", port = 30100, bootstrap_port = 8998, gpus = [0, 1, 2, 3], numa_node = 0 }]
decode.workers = [{ host = "other", listen = "10.0.0.2", port = 30200, gpus = [0, 1, 2, 3], numa_node = 0 }]
"""
ONE_WORKER = """
schema_version = 1
name = "one-worker"
description = "One worker on all eight cards"
supervisor = "systemd"
engine.version = "0.5.23"
model.path = "/models/DeepSeek-V4-Flash-NVFP4"
model.served_name = "deepseek-v4-flash"
args.tp-size = 8
unified.workers = [{ port = 30100 }]
"""


def patient(
    root: Path,
    sets: Sequence[str] = (),
    own: str = EIGHT_CARDS,
    profile: str = "",
    gpus: tuple[GpuFact, ...] = (),
) -> Patient:
    """A plan for this host, before anything is asked: of a profile in words, or of a built-in `profile`. `gpus` are
    those that the plan is made with."""
    (root / "eight-cards.toml").write_text(EIGHT_CARDS)
    (root / "own.toml").write_text(own)
    loaded = load_profile(profile or str(root / "own.toml"), environ={}, cwd=root, sets=sets)
    site = Site("/opt/engine/bin/python", "/var/lib/dsv4ctl", HOME, "/tmp/d", gpus)
    stack = build_stack(loaded, dict.fromkeys(hosts_of(loaded.profile), site))
    return Patient("local", Box({}), loaded.profile, stack.on("local"))


def findings_on(
    box: Recorded, sets: Sequence[str] = (), own: str = EIGHT_CARDS, only: str = "", profile: str = ""
) -> tuple[Finding, ...]:
    """What all checks, or `only` that of one code, say of a box and a plan."""
    checks = [check for check in CHECKS if only in ("", check.code)]
    plan = patient(box.root, sets, own, profile, cards(box) if profile else ())
    return examine(checks, look(box, checks, plan))


def of(box: Recorded, code: str, *sets: str, own: str = EIGHT_CARDS) -> list[Finding]:
    """The findings of one code."""
    return list(findings_on(box, sets, own, only=code))


def severities(findings: Sequence[Finding]) -> list[Severity]:
    """How bad each is."""
    return [finding.severity for finding in findings]


def told(findings: Sequence[Finding]) -> list[str]:
    """The findings as a person reads them."""
    return [f"{finding.severity} {finding.code} {finding.message}" for finding in findings]
