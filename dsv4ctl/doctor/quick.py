"""The quick part of an examination, which `serve` makes before it starts anything: a second, one round trip a host."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsv4ctl.doctor.box import Box, Patient
from dsv4ctl.doctor.check import Check, all_checks, examine, look_at
from dsv4ctl.doctor.timer_order import timer_findings
from dsv4ctl.findings import Finding

if TYPE_CHECKING:
    from dsv4ctl.fleet import Fleet
    from dsv4ctl.hosts.base import Host
    from dsv4ctl.profile.schema import Profile
    from dsv4ctl.stack import Stack, Worker


def quick_findings(
    profile: "Profile", fleet: "Fleet", stack: "Stack", *, without: frozenset[str]
) -> tuple[Finding, ...]:
    """What the checks of all hosts find, but for those of the codes in `without`, and timers in the wrong order.

    Raises:
        OperationFailed, HostUnreachable, DeadlineExceeded
    """
    checks = [check for check in all_checks() if check.code not in without]
    with ThreadPoolExecutor(max(1, len(fleet))) as pool:
        asked = [
            pool.submit(host_findings, checks, place.host, name, profile, stack.on(name))
            for name, place in fleet.items()
        ]
    return (*(finding for future in asked for finding in future.result()), *timer_findings(stack.workers))


def host_findings(
    checks: Sequence[Check], host: "Host", name: str, profile: "Profile", workers: "Sequence[Worker]"
) -> tuple[Finding, ...]:
    """What these checks find on one host, `name` in the profile, on which `workers` are planned.

    Raises:
        OperationFailed, HostUnreachable, DeadlineExceeded
    """
    return examine(checks, look_at(host, checks, Patient(name, Box({}), profile, workers)))
