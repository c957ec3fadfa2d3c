"""Packages beside the engine, against those that the profile was tested with."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dsv4ctl.findings import Finding, Severity

if TYPE_CHECKING:
    from dsv4ctl.facts import HostFacts
    from dsv4ctl.profile.schema import Profile


def version_findings(profile: "Profile", facts: "Mapping[str, HostFacts]") -> Iterator[Finding]:
    """VERSION_DIFFERS for each package of `engine.tested` that a host with engines has in another version, or lacks."""
    hosts = {worker.spec.host for worker in profile.workers}
    for host in sorted(hosts & facts.keys()):
        if "sglang" not in facts[host].packages:
            continue
        for package, tested in profile.engine.tested.items():
            found = facts[host].packages.get(package)
            if found == tested or (found is not None and found.startswith((f"{tested}+", f"{tested}."))):
                continue
            yield Finding(
                "VERSION_DIFFERS",
                Severity.WARNING,
                f"{host} has {f'{package} {found}' if found else f'no {package}'}, and the profile was tested with "
                f"{tested}",
                "install the tested one, or run `dsv4ctl doctor --deep` and `dsv4ctl probe` before you rely on it",
                {"host": host, "package": package, "found": found, "tested": tested},
            )
