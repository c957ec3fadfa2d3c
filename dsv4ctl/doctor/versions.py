"""What is beside the engine, against what the profile was tested with: packages, UCX, the driver."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dsv4ctl.findings import Finding, Severity
from dsv4ctl.packages import DRIVER, UCX

if TYPE_CHECKING:
    from dsv4ctl.facts import HostFacts
    from dsv4ctl.profile.schema import Profile

_NAMED = {DRIVER: "NVIDIA driver", UCX: "UCX"}


def version_findings(profile: "Profile", facts: "Mapping[str, HostFacts]") -> Iterator[Finding]:
    """VERSION_DIFFERS for each thing of `engine.tested` that a host with engines has in another version, lacks, or does
    not tell of."""
    hosts = {worker.spec.host for worker in profile.workers}
    for host in sorted(hosts & facts.keys()):
        if "sglang" not in facts[host].packages:
            continue
        for package, tested in profile.engine.tested.items():
            found = facts[host].packages.get(package)
            if found == tested or (found is not None and found.startswith((f"{tested}+", f"{tested}."))):
                continue
            unseen = facts[host].unseen.get(package) if found is None else None
            name = _NAMED.get(package, package)
            evidence = {"host": host, "package": package, "found": found, "tested": tested}
            if unseen is not None:
                yield Finding(
                    "VERSION_DIFFERS",
                    Severity.UNKNOWN,
                    f"{host} does not tell its version of {name}: {unseen}",
                    f"see to it that it can be asked; the profile was tested with {tested}",
                    evidence,
                )
                continue
            yield Finding(
                "VERSION_DIFFERS",
                Severity.WARNING,
                f"{host} has {f'{name} {found}' if found else f'no {name}'}, and the profile was tested with {tested}",
                "install the tested one, or run `dsv4ctl doctor --deep` and `dsv4ctl probe` before you rely on it",
                evidence,
            )
